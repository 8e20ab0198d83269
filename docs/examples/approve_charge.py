"""An agent that asks a person before it charges a card.

A coordinator delegates to a payments agent, whose tool asks "Approve the $500 charge?". The
run parks. You answer y or n, and it goes on from exactly where it stopped.

    python approve_charge.py                      a scripted model: no key, no network
    OPENAI_API_KEY=... python approve_charge.py   OpenAI; with ANTHROPIC_API_KEY Anthropic
    python approve_charge.py --base-url http://localhost:11434/v1 --model llama3.1

Exit status: 0 where the run came to its end, whatever the answer was; 1 where it did not; 2 for
wrong arguments; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    MetricEvent,
    PendingRequest,
    Request,
    ToolContext,
    ToolnexusError,
    ToolResult,
    tool,
)
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, text, tool_call

# -- the agents -------------------------------------------------------------------------------


@tool
def charge_card(amount: int, ctx: ToolContext) -> ToolResult:
    """Charge the customer's card.

    Args:
        amount: Whole dollars to charge.
    """
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", f"Approve the ${amount} charge?"))
    # Reached only after a yes. A real charge hands ctx.idempotency_key to the payment provider:
    # it is the same text for every execution of this call.
    return ToolResult.ok(f"charged ${amount}")


payments = AgentDef(
    "payments",
    does="charges cards",
    soul="You charge cards with charge_card, once for each order. A person is asked by the "
    "tool: do not ask for approval yourself. Say in one sentence what happened.",
    tools=[charge_card],
)
coordinator = AgentDef(
    "coordinator",
    does="runs the back office",
    soul="You run a shop's back office. You delegate payments. When that is done, say in one "
    "sentence what came of it.",
    team=["payments"],
)
TASK = "Charge the customer 500 dollars for order 17."


# -- the run ----------------------------------------------------------------------------------


class Endpoint(NamedTuple):
    """Where the model is."""

    base_url: str
    style: str
    model: str
    api_key: str
    shown: str


def run(endpoint: Endpoint, wait: float) -> int:
    """Give the coordinator its task, put each question to the person, show what came of it."""
    events: list[MetricEvent] = []
    with AgentRuntime(
        base_url=endpoint.base_url,
        style=endpoint.style,
        api_key=endpoint.api_key,
        default_model=endpoint.model,
        registry=[coordinator, payments],
        on_metric=events.append,
    ) as rt:
        print(f"{bold('Model')}   {endpoint.shown}")
        print(f"{bold('Task')}    {TASK}")
        handle = rt.spawn(rt.root, "coordinator").handle
        result = rt.run_turn(handle, TASK)

        while result.status == "pending":
            # Nothing runs now, and no thread waits. The answer comes from the terminal here;
            # a web handler that knows the request's id could give it as well.
            show_tree(rt)
            question = rt.pending()[0]
            show_question(question)
            is_approved = ask_person(question.request.prompt, wait)
            rt.resume(Answer(question.request.id, ok=is_approved))
            result = rt.wait_on(handle)

        if result.status == "done":
            print(f"\n{bold('Result')}  {result.text}")
        show_trace_and_cost(rt, events)
        if result.status != "done":
            print(f"error: the run ended as {result.status}: {result.text}", file=sys.stderr)
        return 0 if result.status == "done" else 1


# -- the person -------------------------------------------------------------------------------


def ask_person(prompt: str, wait: float) -> bool:
    """Return whether the person says yes. No answer is a no."""
    while True:
        print(f"{bold(prompt)} [y/n] ", end="", flush=True)
        line = read_line(wait)
        if line is None:
            print("n  (no answer; the default is to decline)")
            return False
        said = line.strip().lower()
        if not sys.stdin.isatty():
            print(said)  # a terminal has shown it already
        if said in ("y", "yes", "n", "no"):
            return said in ("y", "yes")
        print("Please answer y or n.")


def read_line(wait: float) -> str | None:
    """Return a line of input; None at its end, or where a pipe is silent for `wait` seconds."""
    if sys.stdin is None or sys.stdin.closed:
        return None
    if sys.stdin.isatty() or os.name == "nt":  # Windows cannot watch a pipe
        return sys.stdin.readline() or None
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([sys.stdin], [], [], wait)[0]:
            return None
        piece = os.read(sys.stdin.fileno(), 1)
        if not piece:
            break
        line += piece
    return line.decode(errors="replace") or None


# -- what is shown ----------------------------------------------------------------------------


def show_tree(rt: AgentRuntime) -> None:
    """Print the live agents, children below their parents."""
    print(f"\n{bold('Agents')}")
    for view in rt.list():
        name = "  " * view.depth + view.id.rpartition("/")[2]
        state = paint("33", f"{view.state.value:10}")
        print(f"{name:22}{state}{view.turns} model call(s), {view.total_tokens} tokens")


def show_question(question: PendingRequest) -> None:
    """Print an open request and where it comes from."""
    print(f"\n{bold('Open request')}")
    print(f"  {question.request.kind}, id {question.request.id}")
    print(f"  asked by {'/'.join(question.path)}")
    print(f"  in {question.tool}({json.dumps(question.arguments)})\n")


def show_trace_and_cost(rt: AgentRuntime, events: Sequence[MetricEvent]) -> None:
    """Print how the handles moved, and the tokens of every model call."""
    print(f"\n{bold('Trace')}")
    for line in rt.trace():
        print(f"  {line}")
    used = [event.usage for event in events if event.kind == "llm"]
    print(
        f"\n{bold('Cost')}    {sum(one.total_tokens for one in used)} tokens "
        f"({sum(one.prompt_tokens for one in used)} in, "
        f"{sum(one.completion_tokens for one in used)} out) in {len(used)} model calls"
    )


def bold(words: str) -> str:
    """Return the words in bold on a terminal."""
    return paint("1", words)


def paint(code: str, words: str) -> str:
    """Return the words in colour on a terminal, and as they are elsewhere."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return words
    return f"\033[{code}m{words}\033[0m"


# -- which model ------------------------------------------------------------------------------

PROVIDERS = {
    "openai": ("OPENAI_API_KEY", "https://api.openai.com/v1", "gpt-4o-mini"),
    "anthropic": ("ANTHROPIC_API_KEY", "https://api.anthropic.com", "claude-haiku-4-5"),
}


@contextmanager
def choose_endpoint(options: argparse.Namespace) -> Iterator[Endpoint]:
    """Give the endpoint that the arguments and the environment ask for."""
    styles = [options.style] if options.style else list(PROVIDERS)
    if options.base_url:
        key = os.environ.get(PROVIDERS[styles[0]][0]) or "none"
        shown = f"{options.model} at {options.base_url}"
        yield Endpoint(options.base_url, styles[0], options.model, key, shown)
        return
    for style in [] if options.scripted else styles:
        variable, base_url, model = PROVIDERS[style]
        if os.environ.get(variable):
            model = options.model or model
            shown = f"{model} at {base_url} ({variable} is set; --scripted needs no key)"
            yield Endpoint(base_url, style, model, os.environ[variable], shown)
            return
    with ScriptedLlm() as llm:
        llm.answer("scripted", say)
        shown = "scripted, on this machine (see --help for a real one)"
        yield Endpoint(llm.base_url, options.style or "openai", "scripted", "none", shown)


def say(request: RecordedRequest) -> Reply:
    """Return what the scripted model says: first it calls the tool it has, then it sums up."""
    results = list(request.tool_results.values())
    if "task" in request.tool_names:
        if not results:
            return tool_call("task", {"agent": "payments", "prompt": "Charge 500 dollars."})
        return text(f"Order 17: {results[-1]}")
    if not results:
        return tool_call("charge_card", {"amount": 500})
    if results[-1].startswith("charged"):
        return text("The card was charged 500 dollars.")
    return text("The charge was declined; nothing was charged.")


# -- the command ------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", help="an endpoint of your own; needs --model")
    parser.add_argument("--model", help="the model's name")
    parser.add_argument("--style", choices=list(PROVIDERS), help="the wire (default: openai)")
    parser.add_argument("--scripted", action="store_true", help="even where a key is set")
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long a silent pipe is given to answer (default: 60)",
    )
    options = parser.parse_args(arguments)
    if options.base_url and not options.model:
        parser.error("--base-url needs --model")
    if options.scripted and (options.base_url or options.model):
        parser.error("--scripted goes with neither --base-url nor --model")
    styles = [options.style] if options.style else list(PROVIDERS)
    variables = [PROVIDERS[style][0] for style in styles]
    if options.model and not (options.base_url or any(map(os.environ.get, variables))):
        parser.error(
            f"--model needs --base-url, or {' or '.join(variables)} in the environment"
        )
    if not 0 <= options.wait <= 86_400:
        parser.error("--wait takes seconds, from 0 to a day")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    options = parse(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # the trace has arrows
    try:
        with choose_endpoint(options) as endpoint:
            return run(endpoint, options.wait)
    except ToolnexusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""replay_tool: one call through all its questions, as separate processes would execute it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeAlias

import attrs

from toolnexus.approvals import ApprovalPolicy
from toolnexus.checkpoint import result_told
from toolnexus.client.client import LlmClient
from toolnexus.clock import Clock
from toolnexus.codec import JsonValue, check_json
from toolnexus.errors import ConfigError
from toolnexus.forms import secret_fields
from toolnexus.results import RunResult
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import Tool, ToolContext, ToolResult, require_tool

Effects: TypeAlias = Collection[object] | Callable[[], Collection[object]]
Done: TypeAlias = tuple[object, ...]

_SHOWN_CHARS: Final = 120


@attrs.frozen(kw_only=True)
class Replay:
    """What became of a call, and what was done on the way.

    Attributes:
        tool: The tool's name.
        result: The call's result as the model is told it, so without metadata.
        questions: What was asked, in order: gates, `ctx.ask` and suspended results alike.
        attempts: How often the tool was executed. A gate asks before the first time, and after
            a decline there may be none.
        effects: What was done before each question, and last of all before the result; so one
            more than `questions`, or empty where `effects` was not given.
    """

    tool: str
    result: ToolResult
    questions: tuple[Request, ...]
    attempts: int
    effects: tuple[Done, ...] = ()

    @property
    def repeated(self) -> Done:
        """What was done again after an answer, each once, in the order of the first time.

        Raises:
            ConfigError: Nobody looked: `replay_tool` was given no `effects`.
        """
        if not self.effects:
            raise ConfigError("replay_tool saw no effects: give it effects=, such as a list")
        found: list[object] = []
        for place, done in enumerate(self.effects):
            later = [effect for again in self.effects[place + 1 :] for effect in again]
            # By ==, as effects need not be hashable.
            for effect in done:
                if effect in later and effect not in found:
                    found.append(effect)
        return tuple(found)

    def report(self) -> str:
        """Return what happened as a few lines, for the message of an assertion.

        What was answered is not in it, as it may be secret.
        """
        counts = f"{_count(self.attempts, 'execution')}, {_count(self.questions, 'question')}"
        lines = [f"{self.tool}: {counts}"]
        ends = [*(f"asked {_shown(one)}" for one in self.questions), _ending(self.result)]
        for place, end in enumerate(ends):
            done = self.effects[place] if self.effects else ()
            lines.append(f"{place + 1}. " + "; ".join([*(f"did {_cut(e)}" for e in done), end]))
        if self.effects:
            lines.append("repeated: " + (", ".join(map(_cut, self.repeated)) or "nothing"))
        return "\n".join(lines)


def replay_tool(
    tool: Tool,
    arguments: Mapping[str, JsonValue],
    answers: Iterable[Any] = (),
    *,
    effects: Effects | None = None,
    keeps_secrets: bool = True,
    approval_policy: ApprovalPolicy | None = None,
    hooks: Any = None,
    clock: Clock | None = None,
) -> Replay:
    """Call `tool` as a model would, answer all it asks, and tell what was done twice. Blocks.

    It is a run like any other: it parks at each question, its checkpoint becomes JSON, and
    another client goes on from that, as another process would.

    Secret fields of answers live in the memory of one process. So the client that is told the
    first secret is the last one.

    Args:
        tool: What is called, with its own gate if it has one.
        arguments: A JSON object.
        answers: What is said to each question, in order: True or False; a JSON value, which is
            a yes with that data, such as `{"args": {...}}` to a gate; an `Answer`, whose id is
            put right; or a function of the `Request` that returns one of these.
        effects: Where the tool's fakes note what they do, or a function that returns it. Equal
            notes are the same effect, so no note tells the attempt or the time.
        keeps_secrets: False loses what a person entered in secret with the process, at the next
            question; then the tool's question is asked again.
        approval_policy: The host's; see `ClientOptions`.
        hooks: The host's; those that look at tools may ask too.
        clock: A `VirtualClock` for questions that expire.

    Raises:
        AssertionError: There are too few answers, or too many.
        InvalidAnswer: An answer does not fit its question.
        RequestExpired: A yes came too late.
        ConfigError: An argument makes no sense.
    """
    check_json(arguments, "arguments")
    options = {"approval_policy": approval_policy, "hooks": hooks, "clock": clock}
    given = {name: value for name, value in options.items() if value is not None}
    model = _model(require_tool(tool).name, arguments)
    process = partial(LlmClient.in_process, model="replay", generate=model, **given)
    replaying = _Replaying(tool, _Script(answers), effects)
    return replaying.run(process, keeps_secrets=keeps_secrets)


class _Replaying:
    """One replay, from the call to its result."""

    def __init__(self, tool: Tool, script: _Script, effects: Effects | None) -> None:
        self._tool = _Counted(tool)
        self._script = script
        self._effects = effects
        self._seen = self._look()
        self._done: list[Done] = []

    def run(self, process: Callable[[], LlmClient], *, keeps_secrets: bool) -> Replay:
        """Call the tool in a first process, and go on in another after each question."""
        told_secret = False
        with ExitStack() as processes:
            client = processes.enter_context(process())
            result = client.run("Call the tool.", tools=[self._tool])
            self._note()
            while result.pending is not None:
                saved = _as_json(result)
                answer = self._script.answer(self._tool.name, result.pending)
                if not told_secret:
                    client = processes.enter_context(process())
                told_secret |= keeps_secrets and bool(secret_fields(result.pending))
                result = client.resume(saved, answer, tools=[self._tool])
                self._note()
        replay = self._replay(result)
        self._script.assert_used(replay)
        return replay

    def _replay(self, result: RunResult) -> Replay:
        told = [one for one in result.messages if one.get("role") == "tool"]
        return Replay(
            tool=self._tool.name,
            result=result_told(told[-1]),
            questions=tuple(self._script.questions),
            attempts=self._tool.attempts,
            effects=() if self._effects is None else tuple(self._done),
        )

    def _note(self) -> None:
        """Note what was done since the last time."""
        seen = self._look()
        before = list(self._seen)
        added = []
        for effect in seen:
            # Not by position: what is given may be the rows of a table, in an order of its own.
            if effect in before:
                before.remove(effect)
            else:
                added.append(effect)
        self._seen = seen
        self._done.append(tuple(added))

    def _look(self) -> Done:
        effects = self._effects
        return tuple((effects() if callable(effects) else effects) or ())


class _Script:
    """What is said, question by question."""

    def __init__(self, answers: Iterable[Any]) -> None:
        if isinstance(answers, (str, bytes, Mapping)) or not isinstance(answers, Iterable):
            raise ConfigError(f"answers must be a list, an answer each, not {answers!r}")
        self._left = deque(answers)
        self.questions: list[Request] = []

    def answer(self, tool: str, request: Request) -> Answer:
        """Return what is said to `request`.

        Raises:
            AssertionError: Nothing is.
        """
        self.questions.append(request)
        if not self._left:
            number = len(self.questions)
            given = _count(number - 1, "answer")
            raise AssertionError(
                f"{tool}: {given} given, and question {number} is {_shown(request)}"
            )
        return _answer_of(self._left.popleft(), request)

    def assert_used(self, replay: Replay) -> None:
        """Check that each answer has had its question.

        Raises:
            AssertionError: It has not.
        """
        if self._left:
            raise AssertionError(f"{_count(self._left, 'answer')} unused\n{replay.report()}")


class _Counted:
    """A tool that counts its executions, and is as it is in all else."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.attempts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:
        self.attempts += 1
        return self._tool.execute(args, ctx)


def _model(
    tool: str, arguments: Mapping[str, JsonValue]
) -> Callable[[object], Mapping[str, JsonValue]]:
    """Return a model that calls the tool, and is content with the result."""
    call = {"name": tool, "arguments": dict(arguments)}
    replies: Iterator[Mapping[str, JsonValue]] = iter(
        ({"tool_calls": [call]}, {"text": "Done."})
    )
    return lambda _request: next(replies)


def _as_json(result: RunResult) -> Any:
    """Return the checkpoint as another process reads it."""
    checkpoint = result.checkpoint
    return json.loads(json.dumps(checkpoint.to_dict())) if checkpoint is not None else None


def _answer_of(said: Any, request: Request) -> Answer:
    if callable(said):
        said = said(request)
    if isinstance(said, Answer):
        return attrs.evolve(said, id=request.id)
    if said is None:
        # Most likely a function that forgot to return; it must not pass for a yes.
        raise ConfigError(f"None is no answer to {_shown(request)}: say True, False or a value")
    if isinstance(said, bool):
        return Answer(request.id, ok=said)
    return Answer(request.id, ok=True, data=said)


def _shown(request: Request) -> str:
    return f"{request.kind} {_cut(request.prompt)}"


def _ending(result: ToolResult) -> str:
    return f"{'failed' if result.is_error else 'gave'} {_cut(result.output)}"


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def _count(things: int | Collection[object], noun: str) -> str:
    number = things if isinstance(things, int) else len(things)
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""A Flask application whose pages show what an agent says while it says it.

The agent charges cards and asks first. The browser may be closed, or reloaded, at any moment:
the run goes on, and whoever comes back finds it where it is.

    pip install flask gunicorn
    OPENAI_API_KEY=... gunicorn --threads 8 'stream_to_browser:create_app()'

One process: the runs are in its memory. An open page takes one of its threads. Another endpoint
than OpenAI's is given as OPENAI_BASE_URL.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from flask import Flask, Response, abort, request

from toolnexus import (
    AgentDef,
    AgentRuntime,
    AlreadyAnswered,
    Answer,
    Handle,
    LlmClient,
    Request,
    RequestExpired,
    ResumeError,
    RunResult,
    TaskResult,
    ToolContext,
    ToolResult,
    tool,
)

# -- the agent --------------------------------------------------------------------------------


@tool
def charge_card(amount: int, ctx: ToolContext) -> ToolResult:
    """Charge the customer's card.

    Args:
        amount: Whole dollars to charge.
    """
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", f"Approve the ${amount} charge?"))
    return ToolResult.ok(f"charged ${amount}")  # reached only after a yes


payments = AgentDef(
    "payments",
    does="charges cards",
    soul="You charge cards with charge_card. Say what you will do, then what came of it.",
    tools=[charge_card],
)

# -- runs -------------------------------------------------------------------------------------


class Runs:
    """The runs that pages look at. The id of a run is the id of its handle."""

    def __init__(self, rt: AgentRuntime) -> None:
        self.rt = rt

    def start(self, prompt: str) -> Handle:
        """Start a run and return its handle."""
        handle = self.rt.spawn(self.rt.root, "payments").handle
        self._close_when_over(handle)
        # Streamed, for pages that come later. A refusal is its result, which pages are told.
        self.rt.wake(handle, prompt, streams=True)
        return handle

    def answer(self, handle: Handle, answer: Answer) -> None:
        """Let a run that asked go on.

        Raises:
            ResumeError: The answer does not fit.
        """
        self._close_when_over(handle)
        self.rt.future_resume(answer)

    def _close_when_over(self, handle: Handle) -> None:
        def look(future: Future[TaskResult]) -> None:
            if future.result().status != "pending":
                self.rt.close(handle)  # the last 1,000 closed handles stay readable

        self.rt.future_result(handle).add_done_callback(look)

    def report(self, handle: Handle) -> dict[str, Any]:
        """Say how a run stands."""
        return reported(self.rt.wait_on(handle, timeout=0))

    def events(self, handle: Handle) -> Iterator[str]:
        """Yield what the present turn has told, then what it tells, then how the run stands.

        A view: where the browser goes away, the server closes this at its next write.
        """
        yield ": \n\n"  # a comment: the page's connection is open, though nobody speaks yet
        for event in self.rt.stream(handle):
            if event.kind == "text":
                yield sent("text", event.delta)
            elif event.kind == "tool_call":
                yield sent("tool_call", event.call.name)
            elif event.kind == "tool_result":
                yield sent("tool_result", event.result.output)
            elif event.kind == "done":
                yield sent("report", reported(event.result))


def reported(result: TaskResult | RunResult) -> dict[str, Any]:
    """Return what a page is told of a result."""
    if result.pending is not None:
        return {"status": "pending", "id": result.pending.id, "text": result.pending.prompt}
    if result.status == "timeout":  # of the wait, not of the run
        return {"status": "running", "text": ""}
    return {"status": result.status, "text": result.text}


def sent(kind: str, data: object) -> str:
    """Return one server-sent event; JSON has no line breaks that could end it early."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


# -- the application --------------------------------------------------------------------------


def create_app() -> Flask:
    """Make the application that a server runs; it is closed with its process."""
    base_url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    rt = AgentRuntime(base_url=base_url, default_model="gpt-4o-mini", registry=[payments])
    return make_app(rt, LlmClient(base_url=base_url, model="gpt-4o-mini"))


def make_app(rt: AgentRuntime, client: LlmClient) -> Flask:
    """Make the application of a runtime and a client; the caller closes them."""
    app, runs = Flask(__name__), Runs(rt)

    def known(run_id: str) -> Handle:
        handle = rt.handle(run_id)
        if handle is None or handle is rt.root:
            abort(404)
        return handle  # a real application asks here whether this user may see it

    @app.post("/runs")
    def start() -> tuple[dict[str, str], int]:
        return {"id": runs.start(request.json["prompt"]).id}, 202

    @app.get("/runs/<path:run_id>/events")
    def events(run_id: str) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx, do not hold
        stream = runs.events(known(run_id))
        return Response(stream, mimetype="text/event-stream", headers=headers)

    @app.get("/runs/<path:run_id>")
    def report(run_id: str) -> dict[str, Any]:
        return runs.report(known(run_id))

    @app.post("/runs/<path:run_id>/answer")
    def answer(run_id: str) -> tuple[dict[str, str], int]:
        given = Answer(request.json["id"], ok=request.json["ok"] is True)
        runs.answer(known(run_id), given)
        return {"id": run_id}, 202

    @app.errorhandler(ResumeError)
    def refused(error: ResumeError) -> tuple[dict[str, str], int]:
        codes = {AlreadyAnswered: 409, RequestExpired: 410}
        return {"error": str(error)}, codes.get(type(error), 404)

    @app.post("/ask")
    def ask() -> Response:
        """Answer with the text as it comes. No run to come back to: who leaves ends it."""
        said = client.stream(request.json["prompt"])
        return Response(
            (event.delta for event in said if event.kind == "text"), mimetype="text/plain"
        )

    @app.get("/")
    def page() -> str:
        return PAGE

    return app


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<title>Payments</title>
<style>
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: auto; padding: 1rem; }
form { display: flex; gap: .5rem; }
input { flex: 1; min-width: 0; }
input, button { font: inherit; padding: .3rem .8rem; }
#said { margin: 1.5rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.step { font: .9rem/2 ui-monospace, monospace; opacity: .7; }
#question:not(:empty) { border-left: .25rem solid orange; padding: .5rem 1rem; }
#state { font-size: .9rem; opacity: .7; }
#problem { color: red; }
</style>
<h1>Payments</h1>
<form id="form">
  <input id="prompt" aria-label="What to do" value="Charge 500 dollars." required>
  <button>Start</button>
</form>
<div id="said" aria-live="polite"></div>
<p id="question"></p>
<p id="state" role="status"></p>
<p id="problem" role="alert"></p>
<script>
const [form, prompt, said, question, state, problem] =
  ["form", "prompt", "said", "question", "state", "problem"]
    .map(id => document.getElementById(id));
let events;

async function post(path, body) {
  problem.replaceChildren();
  const headers = {"Content-Type": "application/json"};
  const reply = await fetch(path, {method: "POST", headers, body: JSON.stringify(body)});
  const told = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(told.error ?? `${reply.status} ${reply.statusText}`);
  return told;
}

function fail(error) {
  problem.textContent = error.message;
}

function watch() {
  events?.close();  // two that are open would both write
  for (const part of [said, question, state]) part.replaceChildren();
  const id = location.hash.slice(1);  // a reload finds the run by it
  if (!id) return;
  state.textContent = "waiting";
  events = new EventSource(`/runs/${id}/events`);
  events.onopen = () => {
    said.replaceChildren();  // what was told so far comes again
    state.textContent = "running";
  };
  events.onerror = () => {  // after most errors the browser connects again by itself
    const isOver = events.readyState === EventSource.CLOSED;
    state.textContent = isOver ? "there is no such run" : "connecting again";
  };
  events.addEventListener("text", e => said.append(JSON.parse(e.data)));
  events.addEventListener("tool_call", e => step(`calls ${JSON.parse(e.data)}`));
  events.addEventListener("tool_result", e => step(JSON.parse(e.data)));
  events.addEventListener("report", e => {
    const report = JSON.parse(e.data);
    events.close();
    state.textContent = report.status;
    if (report.status === "pending") ask(id, report);
    else if (!said.textContent.endsWith(report.text)) said.append(report.text);
  });
}

function step(text) {
  const line = document.createElement("div");
  line.className = "step";
  line.append(text);
  said.append(line);
}

function ask(id, report) {
  const choices = [["Yes", true], ["No", false]].flatMap(([label, ok]) => {
    const button = document.createElement("button");
    button.append(label);
    button.onclick = () => {
      question.replaceChildren();  // one click is one answer
      post(`/runs/${id}/answer`, {id: report.id, ok}).catch(fail).then(watch);
    };
    return [" ", button];
  });
  question.replaceChildren(report.text, ...choices);
}

form.onsubmit = e => {
  e.preventDefault();
  post("/runs", {prompt: prompt.value}).then(run => {
    history.pushState(null, "", `#${run.id}`);
    watch();
  }).catch(fail);
};
window.onhashchange = watch;  // the back button
watch();
</script>
"""

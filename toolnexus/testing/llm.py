"""ScriptedLlm: a model server over real HTTP that says what a test tells it to."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, TypeAlias

import attrs

from toolnexus.testing.loopback import Connection, HttpRequest, HungUp, LoopbackServer
from toolnexus.testing.recorded import RecordedRequest, Style
from toolnexus.testing.render import (
    Rendered,
    Step,
    is_stream,
    render,
    render_error,
    steps,
    used_ids,
)
from toolnexus.testing.replies import Gate, Reply
from toolnexus.testing.strict import Refusal, parse_body
from toolnexus.testing.strict_anthropic import ThoughtMemory, check_anthropic
from toolnexus.testing.strict_openai import check_openai

AnswerFunction: TypeAlias = Callable[[RecordedRequest], Reply]

_PATHS: Final[tuple[tuple[Style, re.Pattern[str]], ...]] = (
    ("openai", re.compile(r"(/[\w.~-]+)*/chat/completions")),
    ("anthropic", re.compile(r"(/[\w.~-]+)*/v1/messages")),
)


@attrs.define(eq=False)
class _Lane:
    """What one model is to say."""

    number: int
    replies: deque[Reply] = attrs.field(factory=deque)
    answer: AnswerFunction | None = None
    ids: int = 0


_UNSCRIPTED: Final = 501
"""No client retries this status, so a mistake in a script shows at once."""


class ScriptedLlm:
    """A model server on loopback, for tests of code that talks to a model.

        with ScriptedLlm() as llm:
            llm.say("gpt-test", tool_call("add", {"a": 1, "b": 2}), text("3"))
            ...                              # run the agent against llm.base_url
            llm.assert_done()

    Replies are scripted for each model name, so that agents which run at the same time, each
    with a model name of its own, cannot take each other's reply. It speaks OpenAI's chat
    completions and Anthropic's messages, plain and streamed, by the path of the request, and
    refuses what the real providers refuse. It serves from its construction on. Thread-safe.

    Attributes:
        base_url: `http://127.0.0.1:<port>/v1`; fits both styles.
        check_done: Whether the `scripted_llm` fixture calls `assert_done` after the test.
    """

    def __init__(self, *, port: int = 0) -> None:
        """Serve.

        Args:
            port: Where; 0 for any that is free, which is what a test wants.

        Raises:
            OSError: The port is in use.
        """
        self.check_done = True
        # Guards everything below; notified for each request. Never held during I/O, a gate
        # or an answer function.
        self._asked = threading.Condition(threading.Lock())
        self._lanes: dict[str, _Lane] = {}
        self._requests: list[RecordedRequest] = []
        self._problems: list[str] = []
        self._failure: Exception | None = None
        self._thoughts = ThoughtMemory()
        self._gates: list[Gate] = []
        self._serial = 0
        self._server = LoopbackServer(self._respond, port)
        self.base_url = f"http://127.0.0.1:{self._server.port}/v1"

    def say(self, model: str, *replies: Reply) -> None:
        """Add replies to what `model` says; each is used once, in order.

        Raises:
            TypeError: The first argument is no model's name, or another is no reply.
        """
        if not isinstance(model, str):
            raise TypeError(f"say takes the model's name first, not {model!r}")
        for reply in replies:
            if not isinstance(reply, Reply):
                raise TypeError(f"say takes replies, such as text('Hi.'), not {reply!r}")
        with self._asked:
            self._lane(model).replies.extend(replies)

    def answer(self, model: str, function: AnswerFunction) -> None:
        """Let `function` answer each request to `model` that finds no scripted reply.

        Args:
            model: The model's name.
            function: Called on the connection's thread, for several requests at once if they
                come at once. What it raises is a 501 for the client and the cause of the
                error of `assert_done`.
        """
        with self._asked:
            self._lane(model).answer = function

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests so far in the order of their arrival, the refused ones included."""
        with self._asked:
            return list(self._requests)

    def requests_of(self, model: str) -> list[RecordedRequest]:
        """Return the requests to one model, in the order of their arrival."""
        return [request for request in self.requests if request.model == model]

    @property
    def open_connections(self) -> int:
        """How many clients are connected; it sinks when a client closes, a moment later."""
        return self._server.open_connections

    def wait_asked(self, model: str, count: int = 1, timeout: float = 5.0) -> None:
        """Block until `count` requests to `model` have arrived since the server started.

        Args:
            model: The model's name.
            count: How many requests, the refused ones included.
            timeout: Seconds.

        Raises:
            TimeoutError: There were fewer; the message says what came.
        """

        def arrived() -> int:
            return sum(request.model == model for request in self._requests)

        with self._asked:
            if self._asked.wait_for(lambda: arrived() >= count, timeout):
                return
            others = sorted({r.model for r in self._requests} - {model})
            message = (
                f"{model!r} was asked {arrived()} of {count} times within {timeout:g} s "
                f"(other models asked: {', '.join(others) or 'none'})"
            )
        raise TimeoutError(message)

    def wait_connections(self, most: int = 0, timeout: float = 5.0) -> None:
        """Block until at most `most` clients are connected.

        Raises:
            TimeoutError: There were more after `timeout` seconds.
        """
        if not self._server.wait_connections(most, timeout):
            raise TimeoutError(
                f"{self.open_connections} connections are open after {timeout:g} s, "
                f"more than {most}"
            )

    def assert_done(self) -> None:
        """Raise unless every reply was used and every request was valid and scripted.

        Raises:
            AssertionError: It names unscripted requests, refused requests, failed answer
                functions and replies that were not used.
        """
        with self._asked:
            problems = list(self._problems)
            for model, lane in self._lanes.items():
                if lane.replies:
                    problems.append(f"{model!r} has {len(lane.replies)} unused replies")
            cause = self._failure
        if problems:
            raise AssertionError("\n".join(["the script was not kept:", *problems])) from cause

    def close(self) -> None:
        """Hang up on every client, end all threads, open all gates. May be called again.

        Raises:
            TimeoutError: An answer function does not return.
        """
        try:
            self._server.close()
        finally:
            with self._asked:
                gates = list(self._gates)
                for lane in self._lanes.values():
                    gates.extend(gate for reply in lane.replies for gate in _gates_of(reply))
            for gate in gates:
                gate.set()

    def __enter__(self) -> ScriptedLlm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _lane(self, model: str) -> _Lane:
        return self._lanes.setdefault(model, _Lane(len(self._lanes) + 1))

    # What follows runs on the connections' threads.

    def _respond(self, http: HttpRequest, connection: Connection) -> None:
        style = next((s for s, path in _PATHS if path.fullmatch(http.path)), None)
        if style is None or http.method != "POST":
            problem = f"{http.method} {http.path} is no endpoint of a model"
            with self._asked:
                self._problems.append(problem)
            self._send(connection, render_error(style or "openai", 404, problem))
            return
        request, code, reply = self._record(style, http)
        if request.refusal is not None:
            self._send(connection, render_error(style, code, request.refusal))
            return
        reply = reply or self._ask_function(request)
        if reply is None:
            scripted = ", ".join(map(repr, sorted(self._lanes))) or "none"
            why = f"scripted: {scripted}"
            if request.model in self._lanes:
                why = "all its replies are used; say more"
            problem = f"unscripted request to model {request.model!r} ({why})"
            self._send(connection, render_error(style, _UNSCRIPTED, problem))
        else:
            self._play(reply, request, connection)

    def _record(
        self, style: Style, http: HttpRequest
    ) -> tuple[RecordedRequest, int, Reply | None]:
        """Check and keep the request and take its reply, as one step."""
        body = {}
        refusal, code = None, 200
        with self._asked:
            try:
                body = parse_body(http.content)
                if style == "anthropic":
                    check_anthropic(http.headers, body, self._thoughts)
                else:
                    check_openai(http.headers, body)
            except Refusal as error:
                refusal, code = error.message, error.status
            model = body.get("model")
            request = RecordedRequest(
                model=model if isinstance(model, str) else "",
                style=style,
                path=http.path,
                headers=http.headers,
                body=body,
                content=http.content,
                refusal=refusal,
            )
            self._requests.append(request)
            reply = self._take(request, code)
            self._asked.notify_all()
        return request, code, reply

    def _take(self, request: RecordedRequest, code: int) -> Reply | None:
        """Take the scripted reply; note what is wrong with the request. Lock held."""
        lane = self._lanes.get(request.model)
        if request.refusal is not None:
            self._problems.append(
                f"request {len(self._requests)}, to {request.model!r}, was refused with "
                f"{code}: {request.refusal}"
            )
        elif lane is not None and lane.replies:
            reply = lane.replies.popleft()
            self._gates.extend(_gates_of(reply))
            return reply
        elif lane is None or lane.answer is None:
            self._problems.append(
                f"request {len(self._requests)}, to {request.model!r}, was not scripted "
                f"(prompt: {request.prompt[:80]!r})"
            )
        return None

    def _ask_function(self, request: RecordedRequest) -> Reply | None:
        lane = self._lanes.get(request.model)
        if lane is None or lane.answer is None:
            return None
        try:
            reply = lane.answer(request)
            gates = _gates_of(reply)
        except Exception as error:  # noqa: BLE001 - the test's own code; assert_done raises it
            self._note_failure(f"the answer function of {request.model!r} raised", error)
            return None
        with self._asked:
            self._gates.extend(gates)
        return reply

    def _play(self, reply: Reply, request: RecordedRequest, connection: Connection) -> None:
        if reply.gate is not None:
            connection.wait_for(reply.gate)
        if reply.cut == "before headers":
            raise HungUp
        try:
            rendered = self._render(reply, request)
            chunks = _chunks(reply, rendered)
        except (TypeError, ValueError) as error:
            problem = f"a reply of {request.model!r} cannot be sent:"
            self._note_failure(problem, error)
            rendered, chunks = render_error(request.style, _UNSCRIPTED, problem), None
        self._send(connection, rendered, reply, chunks)

    def _render(self, reply: Reply, request: RecordedRequest) -> Rendered:
        taken = used_ids(request)
        with self._asked:
            self._serial += 1
            rendered = render(
                reply, request, self._serial, lambda: self._next_id(request.model, taken)
            )
            if request.style == "anthropic" and rendered.value is not None:
                self._thoughts.remember(request.model, rendered.value)
        return rendered

    def _note_failure(self, problem: str, error: Exception) -> None:
        with self._asked:
            self._failure = self._failure or error
            self._problems.append(f"{problem} {error!r}")

    def _next_id(self, model: str, taken: set[str]) -> str:
        """Make a call id: the same in every run, and new to the conversation. Lock held."""
        lane = self._lane(model)
        while True:
            lane.ids += 1
            call_id = f"call_{lane.number}_{lane.ids}"
            if call_id not in taken:
                return call_id

    def _send(
        self,
        connection: Connection,
        rendered: Rendered,
        reply: Reply | None = None,
        chunks: Sequence[Step] | None = None,
    ) -> None:
        reply = reply or Reply()
        is_cut = reply.cut == "in body"
        if chunks is None:
            connection.send(
                rendered.status, rendered.headers, rendered.body, reply.body_gate, cut=is_cut
            )
        else:
            gate = [] if reply.body_gate is None else [reply.body_gate]
            is_cut = is_cut or reply.cut_bytes is not None
            connection.stream(rendered.status, rendered.headers, [*gate, *chunks], cut=is_cut)
        if reply.closes:
            raise HungUp


def _chunks(reply: Reply, rendered: Rendered) -> list[Step] | None:
    """Return how a stream is sent; None for a response that is none.

    Raises:
        ValueError: The reply needs a stream, and the request did not ask for one.
    """
    if is_stream(rendered):
        return steps(reply, rendered.body)
    if reply.is_paced:
        raise ValueError("it is paused or cut as a stream, which the request did not ask for")
    return None


def _gates_of(reply: Reply) -> list[Gate]:
    gates = [reply.gate, reply.body_gate, *(gate for _, gate in reply.pauses), reply.end_gate]
    return [gate for gate in gates if gate is not None]

"""terminal(): a `wait_for` that asks the person at the terminal."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import webbrowser
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TextIO
from urllib.parse import urlsplit

from toolnexus.approvals import digest_of, printable
from toolnexus.codec import JsonValue, dumps, loads
from toolnexus.errors import ConfigError
from toolnexus.forms import all_secret
from toolnexus.prompts.fields import TurnedDown, fill
from toolnexus.prompts.screen import (
    EchoCannotBeStopped,
    EndOfInput,
    Screen,
    is_terminal,
    one_line,
)
from toolnexus.suspension import LOGIN, Answer, Request, format_time

if TYPE_CHECKING:
    from toolnexus.client.options import WaitFor

logger = logging.getLogger(__name__)

_NO_TERMINAL: Final = "no terminal to ask at"
_NAME_CHARS: Final = 64

# A process has one standard input, however many interpreters are made for it: a line must not
# reach another question than the one that is shown.
_standard: Final = threading.Lock()


def terminal(
    *,
    input: TextIO | None = None,  # noqa: A002 - what it is called everywhere else
    output: TextIO | None = None,
) -> WaitFor:
    """Return a `wait_for` that asks the person at the terminal. Thread-safe, blocking.

    It asks one question at a time, whoever asks. An approval is given by `y` or `yes` alone;
    a form is filled field by field until it fits. Ctrl-D gives no answer: the request is
    cancelled. Ctrl-C raises `KeyboardInterrupt`. Where nobody sits at a terminal, nothing is
    read and each request is declined. With the extra `toolnexus[terminal]` prompts are framed.

    Args:
        input: Where lines are read; None for the standard input of that moment.
        output: Where everything is shown; None for the standard output of that moment.

    Raises:
        ConfigError: One of them is no text stream.
    """
    for stream, needs in ((input, "readline"), (output, "write")):
        if stream is not None and not (hasattr(stream, needs) and hasattr(stream, "isatty")):
            raise ConfigError(f"terminal takes text streams, not {stream!r}")
    return _Terminal(input, output)


class _Terminal:
    """Asks at two streams."""

    def __init__(self, lines: TextIO | None, output: TextIO | None) -> None:
        self._lines = lines
        self._output = output
        is_own = lines is not None and lines not in (sys.stdin, sys.__stdin__)
        # Held while a person thinks: it guards the streams, not state.
        self._turn = threading.Lock() if is_own else _standard
        self._warned = threading.Lock()  # never released: whoever takes it warns

    def __call__(self, request: Request) -> Answer | None:
        with self._turn:
            lines = sys.stdin if self._lines is None else self._lines
            output = sys.stdout if self._output is None else self._output
            if is_terminal(lines) and is_terminal(output):
                return _answer(Screen(lines, output), request)
        if self._warned.acquire(blocking=False):
            logger.warning("there is %s; what is asked is declined", _NO_TERMINAL)
        return Answer(request.id, ok=False, reason=_NO_TERMINAL)


def _answer(screen: Screen, request: Request) -> Answer | None:
    try:
        _introduce(screen, request)
        if request.kind == "approval":
            return _approve(screen, request)
        if request.kind == LOGIN:
            return _log_in(screen, request)
        return Answer(request.id, ok=True, data=fill(screen, _wanted(request)))
    except TurnedDown:
        return _declined(screen, request)
    except EchoCannotBeStopped:
        return Answer(request.id, ok=False, reason="no terminal to type a secret at")
    except EndOfInput:
        return None


def _introduce(screen: Screen, request: Request) -> None:
    screen.say()
    screen.quote(request.kind, request.prompt)
    for fault in _list((request.data or {}).get("faults")):
        screen.say(f"That did not fit: {one_line(str(fault))}")
    path = (request.data or {}).get("path")
    if isinstance(path, list):
        screen.say(f"Asked by {one_line('/'.join(map(str, path)))}.")
    if request.expires_at is not None:
        screen.say(f"Open until {format_time(request.expires_at)}.")
    if request.url is not None:
        screen.say(f"Link: {one_line(request.url)}")
    screen.say("Ctrl-D gives no answer.")


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _wanted(request: Request) -> Mapping[str, JsonValue]:
    """Return the schema of an answer: what is asked for, one of the options, or any text."""
    if request.schema is not None:
        return request.schema
    options = (request.data or {}).get("options")
    return {"enum": options} if isinstance(options, list) and options else {"type": "string"}


def _declined(screen: Screen, request: Request) -> Answer:
    said = ""
    with contextlib.suppress(EndOfInput):  # the no has been said
        said = screen.line("Reason (may be left empty): ").strip()
    data = {"message": said} if said else None
    return Answer(request.id, ok=False, data=data, reason="declined")


# -- approvals ---------------------------------------------------------------------------------


def _approve(screen: Screen, request: Request) -> Answer:
    """Ask until it is a yes or a no; what is edited is shown and asked for again."""
    call = request.data or {}
    tool, args = call.get("tool"), call.get("args")
    name = one_line(tool) if isinstance(tool, str) else ""
    words = ("yes", "no", "edit") if _can_edit(call) else ("yes", "no")
    edited: dict[str, JsonValue] | None = None
    while True:
        current = args if edited is None else edited
        _show_call(screen, name, current)
        how = "" if edited is None else " with the new arguments"
        about = f"Run {printable(name, _NAME_CHARS)}{how}?"
        said = screen.choose(*words, about=about if name else "Approve?")
        if said == "no":
            raise TurnedDown
        if said == "yes":
            break
        typed = _edit(screen, current)
        edited = edited if typed is None else typed
    if edited is not None:
        return Answer(request.id, ok=True, data={"args": edited})
    data = None if request.schema is None else fill(screen, request.schema)
    return Answer(request.id, ok=True, data=data)


def _can_edit(call: Mapping[str, JsonValue]) -> bool:
    """Whether the gate asks: a tool that asks by itself may not look at other arguments."""
    tool, args = call.get("tool"), call.get("args")
    if not isinstance(tool, str) or not isinstance(args, Mapping) or not args:
        return False
    return call.get("digest") == digest_of(tool, args)


def _show_call(screen: Screen, name: str, args: JsonValue) -> None:
    if name:
        screen.say(f"Tool: {name}")
    if args is not None:
        screen.say("Arguments:")
        _show_json(screen, args)


def _show_json(screen: Screen, value: JsonValue) -> None:
    """Show all of it: what is approved is what was seen."""
    for line in json.dumps(value, indent=2, ensure_ascii=False).split("\n"):
        screen.say(f"  {one_line(line)}")


def _edit(screen: Screen, current: JsonValue) -> dict[str, JsonValue] | None:
    """Return the arguments that are typed; None where they stay as they are."""
    screen.say(one_line(dumps(current)))
    while True:
        typed = screen.line("New arguments as one line of JSON (empty: as they are): ")
        if not typed.strip():
            return None
        try:
            value = loads(typed)
        except ValueError as error:
            screen.say(f"That is no JSON: {one_line(str(error))}")
            continue
        if isinstance(value, dict):
            return value
        screen.say("The arguments must be a JSON object: {...}")


# -- logins ------------------------------------------------------------------------------------


def _log_in(screen: Screen, request: Request) -> Answer:
    url = request.url or ""
    site = _site_of(url)
    words = ("open", "done", "skip") if site else ("done", "skip")
    about = (
        f"The link leads to {site}." if site else "Open the link yourself." if url else "Login:"
    )
    while True:
        said = screen.choose(*words, about=about)
        if said == "skip":
            return Answer(request.id, ok=False, reason="declined")
        if said == "done":
            break
        if not _open(url):
            screen.say("No browser could be started.")
    data = None if request.schema is None else fill(screen, all_secret(request.schema))
    return Answer(request.id, ok=True, data=data)


def _site_of(url: str) -> str:
    """Return the host of a link that may be opened; "" for any other."""
    # A browser and `urlsplit` may read these differently, and so find another host.
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return ""
    try:
        parts = urlsplit(url)
        return parts.hostname or "" if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _open(url: str) -> bool:
    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False

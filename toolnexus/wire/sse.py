"""Server-sent events, from the bytes of a stream. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from toolnexus.errors import LlmError

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""How much one event may hold: a stream that never ends one would fill the memory."""

_MARK: Final = b"\xef\xbb\xbf"
_FIELD: Final = "data: "


class ServerSentEvent(NamedTuple):
    """One event.

    Attributes:
        event: Its type; `message` where the stream names none.
        data: Its data lines, joined by line feeds.
    """

    event: str
    data: str


class EventParser:
    """Takes the bytes of a stream as they come and gives the events that they complete.

    Lines end in LF, CRLF or CR. Bytes that are not UTF-8 become U+FFFD. Linear in the bytes,
    however they are cut. Not thread-safe, and of no use after an error.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._held = bytearray()
        self._start: bytes | None = b""
        self._after_cr = False

    @property
    def is_mid_event(self) -> bool:
        """Whether an event has begun and not ended; at the end of a stream: it was cut.

        A comment counts as one, blank lines do not.
        """
        return bool(self._held)

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that `data` completes, in order.

        Raises:
            LlmError: An event holds more than `max_event_bytes`.
        """
        if self._start is not None:
            data = self._without_mark(self._start + data)
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        if not self._held:
            data = data.lstrip(b"\n")
        end = data.rfind(b"\n\n") + 2
        if end == 1 and not (self._held.endswith(b"\n") and data.startswith(b"\n")):
            self._hold(data)
            return []
        whole: bytes | bytearray = data[:end]
        if self._held:
            whole = self._held + whole
            self._held = bytearray()
        if len(whole) > self._max_event_bytes:
            self._refuse_above(max(map(len, whole.split(b"\n\n"))))
        self._hold(data[end:])
        return _events(whole.decode("utf-8", "replace"))

    def _without_mark(self, start: bytes) -> bytes:
        """Drop the byte order mark; nothing is let through before it is clear what comes."""
        if len(start) < len(_MARK) and _MARK.startswith(start):
            self._start = start
            return b""
        self._start = None
        return start.removeprefix(_MARK)

    def _with_line_feeds(self, data: bytes) -> bytes:
        if not data:
            return data
        if self._after_cr:
            # That CR has ended its line already: a line feed now is its second half.
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, rest: bytes) -> None:
        self._held += rest
        self._refuse_above(len(self._held))

    def _refuse_above(self, size: int) -> None:
        if size > self._max_event_bytes:
            raise LlmError(
                f"LLM 200: the stream sent an event of more than {self._max_event_bytes} bytes",
                200,
            )


def _events(text: str) -> list[ServerSentEvent]:
    events = []
    for block in text.split("\n\n"):
        if block.startswith(_FIELD) and "\n" not in block:
            # One line of data is what nearly every event is.
            events.append(ServerSentEvent("message", block[len(_FIELD) :]))
        elif block:
            name, lines = "", []
            for line in block.split("\n"):
                field, _, value = line.partition(":")
                if field == "data":
                    lines.append(value.removeprefix(" "))
                elif field == "event":
                    name = value.removeprefix(" ")
            if lines:
                events.append(ServerSentEvent(name or "message", "\n".join(lines)))
    return events

"""Screen: lines that a person types, and texts of anybody's made harmless for a terminal."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final, TextIO

import attrs

from toolnexus import codec

try:
    import termios

    _HAS_TERMIOS = True
except ImportError:  # Windows
    _HAS_TERMIOS = False

_TAB: Final = "    "
_RISKY: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that move the cursor, reorder what is read, or are not seen."""
_PLAIN: Final = re.compile(r"[ -~]*")


class EndOfInput(Exception):
    """The person ended the input instead of answering."""


class EchoCannotBeStopped(Exception):
    """What is typed would be seen."""


def one_line(text: str) -> str:
    r"""Return `text` on one line, harmless for a terminal.

    What could move the cursor or hide is written as JSON does it: an escape character is
    `\u001b`. So JSON stays JSON.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    return json.dumps(char)[1:-1] if unicodedata.category(char) in _RISKY else char


def many_lines(text: str) -> list[str]:
    """Return the lines of `text`, each harmless for a terminal."""
    text = text.replace("\r\n", "\n").replace("\t", _TAB)
    return [one_line(line) for line in text.split("\n")]


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sits at `stream`; a closed one, or None, is none."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


@attrs.frozen
class Screen:
    """A terminal that somebody sits at. Not thread-safe: one question at a time."""

    input: TextIO
    output: TextIO

    def say(self, text: str = "") -> None:
        """Show words of ours: lines in which nothing foreign is but by `one_line`."""
        self._write(f"{text}\n")

    def quote(self, title: str, text: str) -> None:
        """Show a foreign text, of any length, so that no line of it passes for one of ours."""
        lines = many_lines(text)
        panel = _panel_maker()
        if panel is not None:
            panel(self.output, one_line(title), self._encodable("\n".join(lines)))
            return
        self.say(f"--- {one_line(title)} ---")
        for line in lines:
            self.say(f"| {line}")

    def line(self, prompt: str) -> str:
        """Return the next line that is typed.

        Raises:
            EndOfInput: There is none.
        """
        while True:
            self._write(prompt)
            try:
                return self._read()
            except UnicodeDecodeError as error:
                self.say(f"That is no text in {error.encoding}.")

    def secret_line(self, prompt: str) -> str:
        """Return the next line, which is not seen while it is typed.

        Raises:
            EndOfInput: There is none.
            EchoCannotBeStopped: It would be seen. Nothing was read.
        """
        if not _HAS_TERMIOS:
            return self._secret_line_by_getpass(prompt)
        with self._unechoed():
            try:
                return self.line(prompt)
            finally:
                self.say()  # the person's own Enter is not seen either

    def choose(self, *words: str, about: str) -> str:
        """Return the one of `words` that is typed, as a whole or by its first letter.

        Only what is typed after the question is seen counts: an Enter too much must not answer
        the next question.

        Raises:
            EndOfInput: None is.
        """
        menu = " / ".join(f"[{word[0]}]{word[1:]}" for word in words)
        known = {said: word for word in words for said in (word, word[0])}
        while True:
            self._forget_what_was_typed()
            said = self.line(f"{about} {menu}: ").strip().lower()
            if said in known:
                return known[said]
            self.say(f"Please type one of: {', '.join(words)}.")

    def _read(self) -> str:
        try:
            text = self.input.readline()
        except OSError:  # the terminal is gone
            text = ""
        if not text.endswith("\n"):  # what was not entered is no answer
            self.say()
            raise EndOfInput
        return codec.well_formed(text[:-1].removesuffix("\r"))

    def _write(self, text: str) -> None:
        self.output.write(self._encodable(text))
        self.output.flush()

    def _encodable(self, text: str) -> str:
        """Return what the output can be given: nothing else reaches it, whoever wrote it."""
        text = "\n".join(map(one_line, text.split("\n")))
        encoding = getattr(self.output, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _descriptor(self) -> int | None:
        """Return the terminal device; None where there is none that could echo anything."""
        try:
            return self.input.fileno()
        except (AttributeError, OSError, ValueError):
            return None

    def _forget_what_was_typed(self) -> None:
        descriptor = self._descriptor()
        if _HAS_TERMIOS and descriptor is not None:
            with contextlib.suppress(termios.error):
                termios.tcflush(descriptor, termios.TCIFLUSH)

    @contextlib.contextmanager
    def _unechoed(self) -> Iterator[None]:
        descriptor = self._descriptor()
        if descriptor is None:
            yield
            return
        try:
            before = termios.tcgetattr(descriptor)
        except termios.error:
            raise EchoCannotBeStopped from None
        quiet = [*before]
        quiet[3] &= ~termios.ECHO

        def restore() -> None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)

        # Ctrl-C may end the process in another thread while this one reads: the person's shell
        # must not stay silent.
        atexit.register(restore)
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, quiet)
        try:
            yield
        finally:
            restore()
            atexit.unregister(restore)

    def _secret_line_by_getpass(self, prompt: str) -> str:
        if self._descriptor() is None:
            return self.line(prompt)
        # With any other stream, getpass reads in the open.
        if self.input is not sys.stdin or sys.stdin is not sys.__stdin__:
            raise EchoCannotBeStopped
        self._write(prompt)
        return codec.well_formed(getpass.getpass(""))


def _panel_maker() -> Callable[[TextIO, str, str], None] | None:
    """Return what draws a frame around a text; None without rich."""
    try:
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text
    except ImportError:
        return None

    def draw(output: TextIO, title: str, text: str) -> None:
        # As `Text`, or square brackets in foreign words would be markup.
        Console(file=output).print(
            Panel(Text(text, overflow="fold"), title=Text(title), title_align="left")
        )
        output.flush()

    return draw

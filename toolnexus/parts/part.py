"""Part: text, an image, a file or audio, as a prompt and a tool's result may hold them.

What is stored is JSON in OpenAI's shapes, whatever the provider:

`{"type": "text", "text": ...}`
`{"type": "image_url", "image_url": {"url": <data or https URL>, "detail": ...}}`
`{"type": "file", "file": {"filename": ..., "file_data": <data URL>}}`, or with `file_url` and
    `media_type` where the provider is to fetch it, or with `file_id` for one it has
`{"type": "input_audio", "input_audio": {"data": <base64>, "format": ...}}`, or with `url`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, WireFormatError
from toolnexus.parts import media, shapes
from toolnexus.parts.sources import PartSource, Source, read_source

DEFAULT_MAX_PART_BYTES: Final = 20 * 2**20

Content: TypeAlias = "str | list[dict[str, Any]]"
"""What a message holds: a text, or parts as stored."""

Prompt: TypeAlias = "str | Part | Sequence[str | Part | Mapping[str, Any]]"

Detail: TypeAlias = Literal["auto", "low", "high"]

_ANYTHING: Final = "application/octet-stream"


@attrs.frozen(repr=False)
class Part:
    """One part of a prompt or of a tool's result. Immutable; made by its constructors.

    `Part(content)` and `from_dict` read a stored part. A source is a path, bytes, a binary
    file object (read from where it is, left open), a `data:` URL or an `https://` URL, which
    the provider fetches. Its media type is the one given, else the one that its name says,
    else the one that its first bytes say; bytes of an image say it before the name.
    """

    _content: Mapping[str, JsonValue] = attrs.field(converter=shapes.canonical)

    @classmethod
    def text(cls, text: str) -> Part:
        """Return a text."""
        return cls({"type": "text", "text": text})

    @classmethod
    def image(
        cls, source: PartSource, *, media_type: str | None = None, detail: Detail | None = None
    ) -> Part:
        """Return an image.

        Args:
            source: See the class.
            media_type: Such as `image/png`.
            detail: How closely OpenAI looks at it; other providers are not told.

        Raises:
            ConfigError: The source cannot be read, or is no image.
        """
        found = read_source(source)
        said = _said_media_type(media_type, found)
        if said and not said.startswith("image/"):
            raise ConfigError(f"{said} is no image; Part.file or Part.audio takes it")
        url = found.url or media.data_url(_known(said), found.data)
        return cls({"type": "image_url", "image_url": {"url": url, "detail": detail}})

    @classmethod
    def file(
        cls, source: PartSource, *, name: str | None = None, media_type: str | None = None
    ) -> Part:
        """Return a file, such as a PDF or a text.

        Args:
            source: See the class.
            name: What the model is told it is called; the source's own name unless given.
            media_type: Such as `application/pdf`.

        Raises:
            ConfigError: The source cannot be read, or of no known media type.
        """
        found = read_source(source)
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"name must be a str, not {type(name).__name__}")
        said = _known(_said_media_type(media_type, found, name or ""))
        called = codec.well_formed(name or found.name)
        if found.url:
            body = {"filename": called, "file_url": found.url, "media_type": said}
        else:
            body = {"filename": called, "file_data": media.data_url(said, found.data)}
        return cls({"type": "file", "file": body})

    @classmethod
    def audio(cls, source: PartSource, *, format: str | None = None) -> Part:  # noqa: A002 - the wire's own word
        """Return audio.

        Args:
            source: See the class.
            format: Such as `wav` or `mp3`.

        Raises:
            ConfigError: The source cannot be read, or is in no known format.
        """
        found = read_source(source)
        word = _audio_format(found) if format is None else format
        if not word or not isinstance(word, str):
            raise ConfigError("the source does not say its format; give format='wav' or 'mp3'")
        place = {"url": found.url} if found.url else {"data": media.base64_of(found.data)}
        body = {**place, "format": word.lower().lstrip(".")}
        return cls({"type": "input_audio", "input_audio": body})

    @property
    def kind(self) -> str:
        """`text`, `image`, `file` or `audio`."""
        return shapes.word_for(self._content)

    @property
    def media_type(self) -> str:
        """The media type; "" for a web image whose address does not say it."""
        return shapes.media_type_in(self._content)

    @property
    def size_bytes(self) -> int | None:
        """How many bytes it holds; None for one that the provider fetches or has."""
        return shapes.size_bytes(self._content)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the part as it is stored."""
        copied: dict[str, JsonValue] = codec.copy(self._content)
        return copied

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Part:
        """Read what `to_dict` wrote, or another part of the stored shapes.

        Raises:
            WireFormatError: It is malformed. The message quotes none of its data.
        """
        try:
            return cls(data)
        except ConfigError as error:
            raise WireFormatError(f"Part: {error}") from None

    def __str__(self) -> str:
        return f"[{shapes.describe(self._content) or self.kind}]"

    def __repr__(self) -> str:
        return f"Part({self.kind}: {shapes.describe(self._content) or 'by id'})"


def _said_media_type(given: str | None, source: Source, name: str = "") -> str:
    """Return the media type by what is given, the name, the first bytes; "" where none says."""
    if given is not None:
        return media.plain_media_type(given)
    said = source.media_type or media.media_type_of(name) or media.media_type_of(source.name)
    said = "" if said == _ANYTHING else said
    sniffed = media.sniff(source.data)
    # Many a .png is a JPEG, and providers refuse an image that is not what its type says.
    misnamed = said.startswith("image/") and sniffed.startswith("image/")
    return sniffed if misnamed or not said else said


def _known(media_type: str) -> str:
    if not media_type:
        raise ConfigError(
            "neither its name nor its first bytes say what the source is; "
            "give media_type, such as media_type='application/pdf'"
        )
    return media_type


def _audio_format(source: Source) -> str:
    said = _said_media_type(None, source)
    if said and not said.startswith("audio/"):
        raise ConfigError(f"{said} is no audio; Part.image or Part.file takes it")
    return media.suffix_of(said) or said.removeprefix("audio/")


# -- what is stored ----------------------------------------------------------------------------


def content_of(prompt: Prompt) -> Content:
    """Return the content of a user's message for what the user said: a text, or stored parts.

    A text alone stays a text. Anthropic's `image` and `document` dicts stay as they are.

    Raises:
        ConfigError: It is no text and no list of parts, is empty, or one of the parts is
            malformed; the message names its position.
    """
    if isinstance(prompt, str):
        return prompt
    entries = _entries(prompt)
    if not entries:
        raise ConfigError("the prompt is an empty list; give a text or at least one part")
    parts = [_at(index, _entry, one) for index, one in enumerate(entries)]
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        text: str = parts[0]["text"]
        return text
    return parts


def _entries(prompt: object) -> Sequence[object]:
    if isinstance(prompt, Part):
        return [prompt]
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray, memoryview)):
        return prompt
    raise ConfigError(
        f"the prompt must be a str or a list of parts, not {type(prompt).__name__}"
    )


def _at(index: int, read: Callable[[object], Any], value: object, what: str = "prompt") -> Any:
    try:
        return read(value)
    except ConfigError as error:
        raise ConfigError(f"{what}[{index}]: {error}") from None


def _entry(value: object) -> dict[str, Any]:
    is_foreign = shapes.type_of(value) in shapes.FOREIGN
    if is_foreign and isinstance(value, Mapping) and shapes.body_of(value):
        return {"type": value["type"], **shapes.others(value, {"type"})}
    return _part(value).to_dict()


def _part(value: object) -> Part:
    if isinstance(value, Part):
        return value
    if isinstance(value, str):
        return Part.text(value)
    if isinstance(value, Mapping) and "role" in value and "type" not in value:
        raise ConfigError("this is a message, and a prompt is made of parts; see history=")
    return Part(value)


def check_parts(parts: object, max_bytes: int | None = DEFAULT_MAX_PART_BYTES) -> None:
    """Raise if a part is too large. Texts are not counted: the model's own limit bounds them.

    Args:
        parts: What `content_of` gave, or any list of parts.
        max_bytes: Most bytes, decoded, in one part; None for no limit.

    Raises:
        ConfigError: One is larger; the message names its position and size.
    """
    if max_bytes is None or isinstance(parts, str) or not isinstance(parts, Iterable):
        return
    for index, part in enumerate(parts):
        stored = part._content if isinstance(part, Part) else part  # noqa: SLF001 - one room
        if isinstance(stored, Mapping) and is_too_large(stored, max_bytes):
            raise ConfigError(
                f"prompt[{index}] ({shapes.describe(stored)}) is larger than max_part_bytes "
                f"({max_bytes:,}); make it smaller, or raise that option"
            )


def is_too_large(part: Mapping[str, Any], max_bytes: int | None) -> bool:
    """Say whether a stored part that is no text holds more than `max_bytes` bytes."""
    if max_bytes is None or shapes.type_of(part) == "text":
        return False
    return (shapes.size_bytes(part) or 0) > max_bytes


# -- what a tool gave --------------------------------------------------------------------------


def is_parts(value: object) -> bool:
    """Say whether what a tool gave is meant as parts: a Part, or a list or tuple with one."""
    return isinstance(value, Part) or (
        isinstance(value, (list, tuple)) and any(isinstance(one, Part) for one in value)
    )


def parts_from(value: object) -> tuple[Part, ...]:
    """Return parts of what a tool gave: a Part, or a list of Part, str and stored dicts.

    Raises:
        ConfigError: It is something else; the message names the position.
    """
    if value == ():
        return ()  # as nearly every result has it
    if isinstance(value, Part):
        return (value,)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConfigError(f"parts must be a list of parts, not {type(value).__name__}")
    return tuple(_at(index, _part, one, "parts") for index, one in enumerate(value))


def text_of_parts(parts: Iterable[Part]) -> str:
    """Return what a reader of texts is told: the texts, and in brackets what else there is."""
    return "\n".join(_shown(part.to_dict()) for part in parts)


def bounded(parts: Iterable[Part], max_bytes: int | None) -> tuple[Part, ...]:
    """Return parts; in the place of each that is too large, a text that says so."""
    return tuple(_bounded(part, max_bytes) for part in parts)


def _bounded(part: Part, max_bytes: int | None) -> Part:
    stored = part._content  # noqa: SLF001 - one room
    if not is_too_large(stored, max_bytes):
        return part
    return Part.text(f"[{shapes.describe(stored)}: left out, larger than {max_bytes:,} bytes]")


def _shown(stored: Mapping[str, Any]) -> str:
    if shapes.type_of(stored) == "text":
        return str(stored["text"])
    return f"[{shapes.describe(stored) or shapes.word_for(stored)}]"

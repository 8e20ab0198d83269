"""Stored content parts in each wire's own form, and what a wire has no form for.

A transcript outlives its provider, so on the wire a part that cannot be taken becomes a
placeholder, and only what a user says now is refused, by `require_takeable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError
from toolnexus.parts import shapes
from toolnexus.parts.media import IMAGE_TYPES, is_data_url
from toolnexus.parts.part import (
    DEFAULT_MAX_PART_BYTES,
    Content,
    Prompt,
    check_parts,
    content_of,
)
from toolnexus.wire.content import is_blank, part_text

Encoded: TypeAlias = "dict[str, Any] | None"
EncodePart: TypeAlias = Callable[[Mapping[str, Any]], Encoded]

OPENAI_AUDIO_FORMATS: Final = ("wav", "mp3")
PDF: Final = "application/pdf"

_ANTHROPIC_ONLY: Final = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"}
)
_MEDIA: Final = frozenset({*shapes.BODY_KEYS, *shapes.FOREIGN} - {"text"})
_IMAGES: Final = "png, jpeg, gif and webp images"
_TAKEN: Final[Mapping[str, str]] = {
    "openai": f"text, {_IMAGES}, files as data, and wav and mp3 audio as data",
    "anthropic": f"text, {_IMAGES}, PDF files, and UTF-8 text/plain files as data",
}


def is_media(part: object) -> bool:
    """Say whether a part is an image, a file or audio."""
    return shapes.type_of(part) in _MEDIA


def placeholder(part: Mapping[str, Any]) -> str:
    """Return what the model reads in the place of a part that its provider does not take."""
    told = shapes.describe(part)
    kind = part.get("type")
    return f"(a part of type {kind!r} that this provider does not take{told and ': '}{told})"


def prompt_content(
    prompt: Prompt, *, style: str, max_bytes: int | None = DEFAULT_MAX_PART_BYTES
) -> Content:
    """Return the content of a user's new message, which may be sent as it is.

    Args:
        prompt: What the user says.
        style: The wire style, `openai` or `anthropic`.
        max_bytes: Most bytes, decoded, in one part; None for no limit.

    Raises:
        ConfigError: A part is malformed, too large, or not taken by the style.
    """
    content = content_of(prompt)
    check_parts(content, max_bytes)
    require_takeable(content, style)
    return content


def require_takeable(content: JsonValue, style: str) -> None:
    """Raise if the content of a user's new message has a part that `style` does not take.

    Args:
        content: What `content_of` gave.
        style: The wire style, `openai` or `anthropic`.

    Raises:
        ConfigError: It has; the message names the part and what is taken.
    """
    encode = anthropic_block if style == "anthropic" else openai_part
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if part_text(part) is None and encode(part) is None:
            told = shapes.describe(part) or shapes.type_of(part)
            raise ConfigError(
                f"prompt[{index}] ({told}) cannot be sent: the {style!r} style takes "
                f"{_TAKEN.get(style, _TAKEN['openai'])}"
            )


# -- OpenAI ------------------------------------------------------------------------------------


def openai_text(part: Mapping[str, Any]) -> Encoded:
    """Return a part for a message that may not have media; None for one that is.

    Types that only some server knows pass: many speak this dialect, each with its own.
    """
    kind = shapes.type_of(part)
    is_taken = bool(kind) and kind not in _ANTHROPIC_ONLY and not is_media(part)
    return _sendable(part) if is_taken else None


def openai_part(part: Mapping[str, Any]) -> Encoded:
    """Return a part for a user's message; None for one that is not taken."""
    if shapes.type_of(part) in shapes.FOREIGN:
        part = shapes.from_anthropic(part) or {}
    form = _OPENAI.get(shapes.type_of(part), openai_text)
    return form(part)


def _sendable(part: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a copy without keys of ours, with `body` in the place of what the part holds."""
    sent = {key: codec.copy(item) for key, item in part.items() if not str(key).startswith("_")}
    return sent if body is None else {**sent, part["type"]: codec.copy(body)}


def _openai_image(part: Mapping[str, Any]) -> Encoded:
    body, inline = shapes.body_of(part), shapes.inline_of(part)
    url = body.get("url")
    if inline is not None:
        is_taken = inline.media_type in IMAGE_TYPES
    else:
        # An address of a scheme that only some server knows passes.
        is_taken = _is_filled(url) and not is_data_url(url)
    return _sendable(part, body) if is_taken else None


def _openai_file(part: Mapping[str, Any]) -> Encoded:
    body, inline = shapes.body_of(part), shapes.inline_of(part)
    if inline is not None:
        name = body.get("filename")
        called = name if _is_filled(name) else shapes.default_name(inline.media_type)
        return _sendable(part, {**body, "filename": called})
    return _sendable(part) if _is_filled(body.get("file_id")) else None


def _openai_audio(part: Mapping[str, Any]) -> Encoded:
    body = shapes.body_of(part)
    is_taken = _is_filled(body.get("data")) and body.get("format") in OPENAI_AUDIO_FORMATS
    return _sendable(part) if is_taken else None


def _is_filled(value: object) -> bool:
    return isinstance(value, str) and not is_blank(value)


_OPENAI: Final[Mapping[str, EncodePart]] = {
    "image_url": _openai_image,
    "file": _openai_file,
    "input_audio": _openai_audio,
}

# -- Anthropic ---------------------------------------------------------------------------------

_NEEDED: Final[Mapping[object, tuple[str, ...]]] = {
    "base64": ("media_type", "data"),
    "text": ("media_type", "data"),
    "url": ("url",),
    "file": ("file_id",),
}


def anthropic_block(part: Mapping[str, Any]) -> Encoded:
    """Return an image or a document as a block; None for a part that is not taken."""
    kind = shapes.type_of(part)
    if kind in shapes.FOREIGN:
        return _sendable(part) if _is_sound_source(kind, shapes.body_of(part)) else None
    if kind == "image_url":
        source = _image_source(part)
        return source and {"type": "image", "source": source}
    if kind == "file":
        source = _document_source(part)
        name = shapes.body_of(part).get("filename")
        title = {"title": name} if _is_filled(name) else {}
        return source and {"type": "document", "source": source, **title}
    return None


def _is_sound_source(kind: str, source: Mapping[str, Any]) -> bool:
    """Say whether a block of Anthropic's own can be sent as it is, unknown sources included."""
    form, media_type = source.get("type"), source.get("media_type")
    if not _is_filled(form) or not all(map(_is_filled, map(source.get, _NEEDED.get(form, ())))):
        return False
    if form == "base64":
        return media_type in (IMAGE_TYPES if kind == "image" else (PDF,))
    return form != "text" or kind == "document"


def _image_source(part: Mapping[str, Any]) -> Encoded:
    inline = shapes.inline_of(part)
    if inline is None:
        return _web_source(part)
    if inline.media_type not in IMAGE_TYPES:
        return None
    return {"type": "base64", "media_type": inline.media_type, "data": inline.payload}


def _document_source(part: Mapping[str, Any]) -> Encoded:
    inline, media_type = shapes.inline_of(part), shapes.media_type_in(part)
    if media_type == PDF:
        if inline is None:
            return _web_source(part)
        return {"type": "base64", "media_type": media_type, "data": inline.payload}
    if media_type != "text/plain" or inline is None:
        return None
    try:
        text = inline.decode().decode()
    except ValueError:
        return None
    return None if is_blank(text) else {"type": "text", "media_type": media_type, "data": text}


def _web_source(part: Mapping[str, Any]) -> Encoded:
    url = shapes.url_of(part)
    if not url.lower().startswith("https://"):
        return None
    return {"type": "url", "url": "https" + url[len("https") :]}

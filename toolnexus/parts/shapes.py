"""The stored shapes of content parts: what is sound, and how to look at one. Pure.

What is looked at may come from anywhere, so nothing here trusts a key to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, WireFormatError
from toolnexus.parts import media
from toolnexus.parts.media import DataUrl, split_data_url

BODY_KEYS: Final[Mapping[str, str]] = {
    "text": "text",
    "image_url": "image_url",
    "file": "file",
    "input_audio": "input_audio",
}
"""The types of stored parts, and under which key each has what it holds."""

FOREIGN: Final = ("image", "document")
"""Anthropic's own types, which stay as they are in a transcript that has them."""

_WORDS: Final[Mapping[str, str]] = {
    "text": "text",
    "image_url": "image",
    "image": "image",
    "file": "file",
    "document": "file",
    "input_audio": "audio",
}
_AUDIO_TYPES: Final[Mapping[str, str]] = {"mp3": "audio/mpeg", "m4a": "audio/mp4"}
_NAME_CHARS: Final = 80
_DETAILS: Final = ("auto", "low", "high")
_EXAMPLE: Final = 'a str, a Part (Part.image("chart.png")) or a dict like {"type": "text", ...}'


def type_of(part: object) -> str:
    """Return the `type` of a part; "" where it has none."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else ""


def word_for(part: object) -> str:
    """Return `text`, `image`, `file` or `audio`; "" for a part of another type."""
    return _WORDS.get(type_of(part), "")


def body_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a part holds; empty for a text, and where nothing sound is there."""
    kind = type_of(part)
    body = part.get("source" if kind in FOREIGN else BODY_KEYS.get(kind, ""))
    if kind == "image_url" and isinstance(body, str):
        return {"url": body}  # the short form that some servers take
    return body if isinstance(body, Mapping) else {}


def inline_of(part: Mapping[str, Any]) -> DataUrl | None:
    """Return the data URL of an image or a file in OpenAI's shape; None where it has none."""
    return split_data_url(body_of(part).get("file_data" if type_of(part) == "file" else "url"))


def url_of(part: Mapping[str, Any]) -> str:
    """Return the web address that a provider would fetch the part from; "" for none."""
    url = body_of(part).get("file_url" if type_of(part) == "file" else "url")
    is_web = isinstance(url, str) and url[:8].lower().startswith(("https://", "http://"))
    return str(url) if is_web else ""


def media_type_in(part: Mapping[str, Any]) -> str:
    """Return the media type of a part; "" where it does not say."""
    kind, body, inline = type_of(part), body_of(part), inline_of(part)
    if kind == "text":
        return "text/plain"
    if inline is not None:
        return inline.media_type
    if kind == "input_audio":
        word = body.get("format")
        return _AUDIO_TYPES.get(word, f"audio/{word}") if isinstance(word, str) else ""
    said = body.get("media_type")
    if isinstance(said, str):
        return said
    name = body.get("filename")
    return media.media_type_of(name if isinstance(name, str) else _path_of(url_of(part)))


def size_bytes(part: Mapping[str, Any]) -> int | None:
    """Return how many bytes a part holds; None for one that only says where it is."""
    kind, body, inline = type_of(part), body_of(part), inline_of(part)
    if inline is not None:
        return inline.size_bytes
    if kind == "text" or (kind in FOREIGN and body.get("type") == "text"):
        text = part.get("text") if kind == "text" else body.get("data")
        return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
    return media.base64_size_bytes(body["data"]) if "data" in body else None


def describe(part: Mapping[str, Any]) -> str:
    """Return media type, size and name in a few words, never any data or query; or ""."""
    size, url = size_bytes(part), url_of(part)
    what = media_type_in(part) or word_for(part)
    if size is not None:
        words = [what, f"{size:,} bytes"]
    elif url:
        words = [f"{what} at {_host_of(url)}"]
    else:
        return ""
    name = body_of(part).get("filename") or part.get("title")
    if isinstance(name, str) and word_for(part) == "file":
        words.append(media.without_base64(" ".join(name.split()))[:_NAME_CHARS])
    return ", ".join(words)


def _path_of(url: str) -> str:
    try:
        return urlsplit(url).path.rpartition("/")[2]
    except ValueError:
        return ""


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or "?"
    except ValueError:
        return "?"


def default_name(media_type: str) -> str:
    """Return the name of a file that has none: providers want one."""
    suffix = media.suffix_of(media_type)
    return f"file.{suffix}" if suffix else "file"


def from_anthropic(part: Mapping[str, Any]) -> dict[str, JsonValue] | None:
    """Return Anthropic's `image` or `document` in OpenAI's shape; None where there is none."""
    source = body_of(part)
    kind, data, media_type = source.get("type"), source.get("data"), source.get("media_type")
    url = ""
    if kind == "url":
        url = url_of(part)
    elif isinstance(data, str) and data and isinstance(media_type, str):
        if kind == "base64":
            url = f"data:{media_type};base64,{data}"
        elif kind == "text":
            url = media.data_url(media_type, data.encode("utf-8", "replace"))
    if not url:
        return None
    if type_of(part) == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    media_type = media_type if isinstance(media_type, str) else "application/pdf"
    title = part.get("title")
    name = title if isinstance(title, str) and title.strip() else default_name(media_type)
    if kind == "url":
        body = {"filename": name, "file_url": url, "media_type": media_type}
    else:
        body = {"filename": name, "file_data": url}
    return {"type": "file", "file": body}


# -- what is sound -----------------------------------------------------------------------------


def canonical(value: object) -> dict[str, JsonValue]:
    """Return a checked copy of a stored part; Anthropic's shapes become OpenAI's.

    Raises:
        ConfigError: It is malformed. The message quotes none of its data.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"a part is {_EXAMPLE}, not {type(value).__name__}")
    kind = type_of(value)
    if kind in FOREIGN:
        converted = from_anthropic(value)
        if converted is None:
            raise ConfigError(f"this {kind} has no data and no URL")
        return canonical(converted)
    if kind not in _BODIES:
        known = ", ".join(_BODIES)
        raise ConfigError(f"a part of type {kind!r:.60} is not known; known: {known}")
    key = BODY_KEYS[kind]
    return {"type": kind, key: _BODIES[kind](value.get(key)), **others(value, {"type", key})}


def others(value: Mapping[str, Any], known: set[str]) -> dict[str, JsonValue]:
    """Return a copy of the keys that are not `known`: a provider's own, like `cache_control`.

    Raises:
        ConfigError: They are not JSON.
    """
    rest = {key: item for key, item in value.items() if key not in known}
    try:
        codec.check_json(rest, "a part")
    except WireFormatError as error:
        raise ConfigError(str(error)) from None
    return {key: codec.copy(item) for key, item in rest.items() if not key.startswith("_")}


def _mapping(value: object, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"its {key!r} must be an object, not {type(value).__name__}")
    return value


def _text(body: object) -> str:
    if not isinstance(body, str):
        raise ConfigError(f"a part's text must be a str, not {type(body).__name__}")
    return body


def _image(body: object) -> dict[str, JsonValue]:
    body = _mapping({"url": body} if isinstance(body, str) else body, "image_url")
    url = _data_url(body.get("url")) or _web_url(body.get("url"))
    inline, detail = media.split_data_url(url), body.get("detail")
    if inline is not None and not inline.media_type.startswith("image/"):
        raise ConfigError(f"{inline.media_type} is no image; Part.file takes it")
    if detail is not None and detail not in _DETAILS:
        raise ConfigError(f"detail must be one of {', '.join(_DETAILS)}, not {detail!r:.60}")
    looked_at = {} if detail is None else {"detail": detail}
    return {"url": url, **looked_at, **others(body, {"url", "detail"})}


def _file(body: object) -> dict[str, JsonValue]:
    body = _mapping(body, "file")
    name, media_type = body.get("filename"), body.get("media_type")
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"a file's name must be a str, not {type(name).__name__}")
    rest = others(body, {"filename", "file_data", "file_url", "media_type"})
    if isinstance(body.get("file_id"), str):
        return {"filename": name, **rest} if name else rest
    if body.get("file_data") is not None:
        url = _data_url(body["file_data"])
        inline = media.split_data_url(url)
        if inline is None:
            raise ConfigError("file_data must be a data: URL; a web address is file_url")
        name = name or default_name(inline.media_type)
        return {"filename": name, "file_data": url, **rest}
    url = _web_url(body.get("file_url"))
    media_type = media.plain_media_type(media_type or media.media_type_of(name or ""))
    name = name or default_name(media_type)
    return {"filename": name, "file_url": url, "media_type": media_type, **rest}


def _audio(body: object) -> dict[str, JsonValue]:
    body = _mapping(body, "input_audio")
    word, data = body.get("format"), body.get("data")
    if not isinstance(word, str) or not word.replace("_", "").isalnum():
        raise ConfigError(f"audio needs a format such as 'wav' or 'mp3', not {word!r:.60}")
    rest = others(body, {"data", "url", "format"})
    if data is None:
        return {"url": _web_url(body.get("url")), "format": word.lower(), **rest}
    if not media.is_base64(data):
        raise ConfigError("the data of audio must be base64; Part.audio makes it from bytes")
    return {"data": data, "format": word.lower(), **rest}


_BODIES: Final[Mapping[str, Callable[[object], JsonValue]]] = {
    "text": _text,
    "image_url": _image,
    "file": _file,
    "input_audio": _audio,
}


def _data_url(url: object) -> str:
    """Return a data URL in the form that is stored; "" for what is none."""
    if not isinstance(url, str) or not media.is_data_url(url):
        return ""
    inline = media.split_data_url(url)
    if inline is None or not media.is_base64(inline.payload):
        media_type, data = media.read_data_url(url)
        if not data:
            raise ConfigError("its data URL holds 0 bytes")
        return media.data_url(media_type, data)
    head = f"data:{inline.media_type};base64,"
    return url if url.startswith(head) else head + inline.payload


def _web_url(url: object) -> str:
    if not isinstance(url, str):
        raise ConfigError(f"a part needs its data or a URL, not {type(url).__name__}")
    media.require_https(url)
    return url

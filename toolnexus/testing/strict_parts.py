"""What providers refuse of images, files and audio. Pure.

The rules are written anew here, from the providers' pages, and share no code with the wire.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from toolnexus.testing.strict import Refusal, require

_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DETAILS: Final = ("auto", "low", "high")
_DATA_URL: Final = re.compile(r"data:([a-z]+/[a-z0-9.+_-]+);base64,")
_MEDIA: Final = ("image_url", "input_audio", "file")
_ANTHROPIC: Final = ("image", "document")
_DOCUMENT_FORMS: Final = ("base64", "url", "text", "content", "file")


def check_openai_media(part: Mapping[str, Any], role: object, where: str) -> None:
    """Refuse a part that OpenAI does not take in a message of `role`. Other types pass."""
    kind = part.get("type")
    require(kind not in _ANTHROPIC, f"{where}.type: Invalid value: {kind!r}")
    if kind not in _MEDIA:
        return
    require(role == "user", f"{where}: role {role!r} takes no content of type {kind!r}")
    body = part.get(str(kind))
    if not isinstance(body, dict):
        raise Refusal(f"{where}.{kind}: expected an object")
    if kind == "image_url":
        _check_openai_image(body, f"{where}.image_url")
    elif kind == "file":
        _check_openai_file(body, f"{where}.file")
    else:
        _check_base64(body.get("data"), f"{where}.input_audio.data")
        known = body.get("format") in ("wav", "mp3")
        require(known, f"{where}.input_audio.format: must be 'wav' or 'mp3'")


def _check_openai_image(body: Mapping[str, Any], where: str) -> None:
    url = body.get("url")
    require(isinstance(url, str) and url.strip(), f"{where}.url: is required")
    if str(url).startswith("data:"):
        media_type = _check_data_url(str(url), f"{where}.url")
        require(media_type in _IMAGES, f"{where}.url: unsupported image type {media_type}")
    require(body.get("detail", "auto") in _DETAILS, f"{where}.detail: is not known")


def _check_openai_file(body: Mapping[str, Any], where: str) -> None:
    known = ("filename", "file_data", "file_id")
    for key in body:
        require(key in known, f"{where}.{key}: Unknown parameter")
    if "file_id" in body:
        return
    require(body.get("filename"), f"{where}.filename: is required")
    data = body.get("file_data")
    require(isinstance(data, str), f"{where}.file_data: is required")
    _check_data_url(str(data), f"{where}.file_data")


def _check_data_url(url: str, where: str) -> str:
    header = _DATA_URL.match(url)
    require(header, f"{where}: expected a base64-encoded data URL with a media type")
    end = header.end() if header else 0
    _check_base64(url[end:], where)
    return header[1] if header else ""


def _check_base64(data: object, where: str) -> None:
    try:
        is_sound = (
            bool(base64.b64decode(data, validate=True)) if isinstance(data, str) else False
        )
    except ValueError:
        is_sound = False
    require(is_sound, f"{where}: invalid base64 data")


def check_anthropic_media(block: Mapping[str, Any], where: str) -> None:
    """Refuse an `image` or a `document` that Anthropic does not take."""
    kind, source = block["type"], block.get("source")
    place = f"{where}.{kind}.source"
    require(isinstance(source, dict), f"{place}: Field required")
    body: dict[str, Any] = source if isinstance(source, dict) else {}
    form = body.get("type")
    forms = ("base64", "url", "file") if kind == "image" else _DOCUMENT_FORMS
    require(form in forms, f"{place}.type: {form!r} is none of {', '.join(forms)}")
    if form == "base64":
        taken = _IMAGES if kind == "image" else ("application/pdf",)
        require(body.get("media_type") in taken, f"{place}.media_type: not one of {taken}")
        _check_base64(body.get("data"), f"{place}.data")
    elif form == "url":
        is_web = str(body.get("url", "")).startswith("https://")
        require(is_web, f"{place}.url: Only HTTPS URLs are supported")
    elif form == "text":
        require(body.get("media_type") == "text/plain", f"{place}.media_type: text/plain only")
        text = body.get("data")
        require(isinstance(text, str) and text.strip(), f"{place}.data: must have text")
    elif form == "file":
        require(isinstance(body.get("file_id"), str), f"{place}.file_id: Field required")

"""What bytes are, and how they travel in JSON: media types, data URLs, base64. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

import attrs

from toolnexus.errors import ConfigError

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that the providers of both wire styles take."""

_BY_SUFFIX: Final[Mapping[str, str]] = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "svg": "image/svg+xml",
    "heic": "image/heic",
    "avif": "image/avif",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "log": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "htm": "text/html",
    "json": "application/json",
    "xml": "application/xml",
    "zip": "application/zip",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
    "m4a": "audio/mp4",
}
_ALIASES: Final[Mapping[str, str]] = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "application/x-pdf": "application/pdf",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/x-m4a": "audio/mp4",
    "audio/x-flac": "audio/flac",
}
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
)
_RIFF: Final[Mapping[bytes, str]] = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+_-]*/[a-z0-9][a-z0-9.+_-]*")
_HEADER: Final = re.compile(
    r"data:([a-z0-9.+_-]{1,100}/[a-z0-9.+_-]{1,100});base64,", re.IGNORECASE
)
_UTF8: Final = ("", "utf-8", "utf8", "us-ascii", "ascii")


def media_type_of(name: str) -> str:
    """Return the media type that a file name's suffix says; "" where it says none."""
    _, dot, suffix = name.rpartition(".")
    return _BY_SUFFIX.get(suffix.lower(), "") if dot else ""


def suffix_of(media_type: str) -> str:
    """Return the suffix of files of a media type, without its dot; "" for an unknown type."""
    return next((suffix for suffix, known in _BY_SUFFIX.items() if known == media_type), "")


def sniff(data: bytes) -> str:
    """Return the media type that the first bytes say; "" where they say none."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return media_type
    # A frame of MPEG layer III without a tag before it.
    is_mp3 = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2
    return "audio/mpeg" if is_mp3 else ""


def plain_media_type(text: object) -> str:
    """Return a media type in lower case, without parameters, by its usual name.

    Raises:
        ConfigError: It is no media type.
    """
    if not isinstance(text, str):
        raise ConfigError(f"media_type must be a str, not {type(text).__name__}")
    media_type = text.partition(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(media_type):
        shown = without_base64(text)[:60]
        raise ConfigError(f"media_type must be like 'image/png', not {shown!r}")
    return _ALIASES.get(media_type, media_type)


# -- data URLs ---------------------------------------------------------------------------------


@attrs.frozen(repr=False)
class DataUrl:
    """A data URL in the one form that is stored: `data:<type>;base64,<payload>`.

    Attributes:
        media_type: In lower case, without parameters.
        url: The whole of it.
        start: Where its payload begins.
    """

    media_type: str
    url: str
    start: int

    @property
    def payload(self) -> str:
        """The base64 text; a copy, so not to be had for a mere look at the type."""
        return self.url[self.start :]

    @property
    def size_bytes(self) -> int:
        """How many bytes it holds."""
        return _size_bytes(self.url, self.start)

    def decode(self) -> bytes:
        """Return its bytes.

        Raises:
            ValueError: The payload is not base64.
        """
        return base64.b64decode(self.payload, validate=True)


def is_data_url(value: object) -> bool:
    """Say whether `value` is a text that begins as a data URL does."""
    return isinstance(value, str) and value[:5].lower() == "data:"


def split_data_url(value: object) -> DataUrl | None:
    """Return the parts of a base64 data URL; None for anything else. Decodes nothing."""
    header = _HEADER.match(value) if isinstance(value, str) else None
    if header is None or not isinstance(value, str) or len(value) == header.end():
        return None
    media_type = header[1].lower()
    return DataUrl(_ALIASES.get(media_type, media_type), value, header.end())


def data_url(media_type: str, data: bytes) -> str:
    """Return bytes as a data URL."""
    return f"data:{media_type};base64,{base64_of(data)}"


def read_data_url(url: str) -> tuple[str, bytes]:
    """Return media type and bytes of any data URL: base64 or percent-encoded.

    Text in a charset other than UTF-8 is turned into UTF-8.

    Raises:
        ConfigError: It is malformed. The message quotes none of its data.
    """
    header, comma, payload = url[len("data:") :].partition(",")
    if not comma:
        raise ConfigError("a data URL is like data:image/png;base64,..., this one has no comma")
    words = [word.strip() for word in header.split(";")]
    data = unquote_to_bytes(payload) if "%" in payload else payload.encode("utf-8", "replace")
    if words[-1].lower() == "base64":
        data = bytes_of(data)
    media_type = plain_media_type(words[0] or sniff(data) or "text/plain")
    charset = next((w[8:].strip("\"'") for w in words if w.lower().startswith("charset=")), "")
    if media_type.startswith("text/") and charset.lower() not in _UTF8:
        try:
            data = data.decode(charset).encode()
        except (LookupError, UnicodeError):
            raise ConfigError(
                f"a data URL's text is not in its charset {charset!r:.40}"
            ) from None
    return media_type, data


def require_https(url: str) -> str:
    """Return the path of an https URL.

    Raises:
        ConfigError: It is no https URL that can be fetched.
    """
    try:
        split = urlsplit(url)
        host = split.hostname
    except ValueError:
        split, host = None, None
    is_clean = url.isprintable() and " " not in url
    if split is None or split.scheme != "https" or not host or not is_clean:
        raise ConfigError("an https URL is like https://host/path, without white space in it")
    return split.path


# -- base64 ------------------------------------------------------------------------------------


def base64_of(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode("ascii")


def is_base64(value: object) -> bool:
    """Say whether `value` is a text that is base64 to the letter, and not empty."""
    if not isinstance(value, str) or not value:
        return False
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        return False
    return True


def bytes_of(encoded: bytes) -> bytes:
    """Return what base64 says; white space in it and missing padding are forgiven.

    Raises:
        ConfigError: It is not base64. The message quotes none of it.
    """
    encoded = b"".join(encoded.split())
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise ConfigError(f"these {len(encoded):,} characters are not base64") from None


def base64_size_bytes(value: object) -> int:
    """Return how many bytes a base64 text holds; 0 for what is no text. Decodes nothing."""
    return _size_bytes(value, 0) if isinstance(value, str) else 0


def _size_bytes(text: str, start: int) -> int:
    padding = 2 if text.endswith("==") else 1 if text.endswith("=") else 0
    return max(0, (len(text) - start - padding) * 3 // 4)


# A backslash belongs to it: some servers write `\/` for each slash, `\n` for each line's end.
_BASE64: Final = re.compile(
    r"data:[a-z0-9.+_-]{0,100}(?:\\?/[a-z0-9.+_-]{0,100})?(?:;[a-z0-9.+_=-]{0,100}){0,4}"
    r";base64,[a-z0-9+/=_%\\\r\n-]*"
    # Looked for from the beginning of a word only, or each of its characters would be tried.
    r"|(?<![a-z0-9+/_\\-])(?:(?:[a-z0-9+/_-]{60,80}\r?\n){2,}[a-z0-9+/_-]*"
    r"|[a-z0-9+/_\\-]{100,})={0,2}",
    re.IGNORECASE | re.ASCII,
)


def without_base64(text: str) -> str:
    """Return `text` with `[base64, N characters]` for data URLs and long runs of base64.

    Apply it before a text is cut: the rest of a run that was cut may be too short to be told.
    """
    return _BASE64.sub(_named, text)


def _looks_random(run: str) -> bool:
    """Say whether a long run is base64, which has letters of both cases and few separators."""
    # JSON may write `\\/` for a slash; other backslashes are those of paths.
    separators = sum(map(run.replace("\\/", "/").count, "/_-\\"))
    return not (run.islower() or run.isupper()) and separators <= len(run) // 12


def _named(found: re.Match[str]) -> str:
    run = found[0]
    if not run.lower().startswith("data:") and not _looks_random(run):
        return run
    return f"[base64, {len(run):,} characters]"

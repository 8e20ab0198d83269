"""Values as columns: JSON, times and texts of any kind."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta, timezone
from typing import Final

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
_LAST: Final = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND


def to_column(value: JsonValue, what: str) -> str:
    """Return a value as JSON text.

    Raises:
        StoreError: It is not JSON, or would not be read again; names `what`, quotes nothing.
    """
    try:
        text = codec.lossless(value)
        # What nests too deeply for `loads` has to be refused while its writer can be told.
        if text.count("[") + text.count("{") > codec.NESTING_MAX:
            codec.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{what} cannot be stored: {error}") from None
    return text


def from_column(text: object, what: str) -> JsonValue:
    """Return the value that JSON text stands for.

    Raises:
        StoreError: It is damaged; names `what`, quotes nothing.
    """
    if isinstance(text, str):
        try:
            return codec.loads(text)
        except ValueError:
            pass
    raise StoreError(f"{what} cannot be read: it is not the JSON that was written")


def readable(data: bytes) -> str:
    """Return a text; one that is damaged becomes "", which is no JSON."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def to_micros(time: datetime) -> int:
    """Return an aware time in microseconds since 1970."""
    # Beyond the last time in UTC there are a few hours of the last day elsewhere.
    return min((time - _EPOCH) // _MICROSECOND, _LAST)


def from_micros(micros: int) -> datetime:
    """Return the aware time that `to_micros` has put down, in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def to_text(text: str) -> str:
    """Return any text as one that every database keeps: without NUL and lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text) if "\0" in text or text.startswith('"') else text


def to_key(text: str) -> str:
    """Return what stands for a text, of any length, where it is only looked for."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def from_text(text: str) -> str:
    """Return the text that `to_text` was given."""
    return str(json.loads(text)) if text.startswith('"') else text


def below(handle_id: str) -> tuple[str, str, str, str]:
    """Return the values for `_BELOW`: a handle's id and those below it, as ranges of an index.

    The statement says `name >= ? AND name < ? AND (name = ? OR name >= ?)`.
    """
    # "0" follows "/"; what sorts between the id and its children has a "-" or "." there.
    return handle_id, f"{handle_id}0", handle_id, f"{handle_id}/"

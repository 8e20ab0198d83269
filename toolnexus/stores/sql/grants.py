"""Grants."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError
from toolnexus.stores.sql import owning
from toolnexus.stores.sql.session import Session
from toolnexus.stores.sql.values import from_column, from_text

logger = logging.getLogger(__name__)

_PUT_GRANT: Final = """INSERT INTO toolnexus_grant (runtime, name, body)
    VALUES ((SELECT id FROM toolnexus_runtime WHERE name = ?), ?, ?)
    ON CONFLICT (runtime, name) DO UPDATE SET body = excluded.body"""
_REMOVE_GRANT: Final = """DELETE FROM toolnexus_grant
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?"""
_GRANTS: Final = """SELECT name, body FROM toolnexus_grant
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) ORDER BY id"""


def put_grant(session: Session, runtime: str, grant_id: str, grant: str) -> None:
    """Keep a grant, as JSON text."""
    owning.put_runtime(session, runtime)
    session.run(_PUT_GRANT, runtime, grant_id, grant)


def remove_grant(session: Session, runtime: str, grant_id: str) -> bool:
    """Forget a grant; say whether there was one."""
    return session.run(_REMOVE_GRANT, runtime, grant_id) > 0


def grants(session: Session, runtime: str) -> Mapping[str, JsonValue]:
    """Return the grants by id, oldest first; one that cannot be read is told to the log.

    It is left out, for without it somebody is asked, and nothing is done that nobody allowed.
    """
    found: dict[str, JsonValue] = {}
    for key, text in session.rows(_GRANTS, runtime):
        name = from_text(key)
        try:
            found[name] = from_column(text, f"grant {name!r}")
        except StoreError as error:
            logger.error("%s; nothing is granted by it", error)  # noqa: TRY400 - no traceback
    return found

"""Questions: what a store knows of requests that the runtime's own book does not."""

from __future__ import annotations

import logging
from typing import Final

from toolnexus.errors import StoreError
from toolnexus.forms import login_key
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.requests import asked
from toolnexus.stores.base import RunStore
from toolnexus.suspension import Request

logger = logging.getLogger(__name__)

_LONGEST: Final = 200


def is_portable(request_id: str) -> bool:
    """Whether every database can hold an id and look for it."""
    return len(request_id) <= _LONGEST and request_id.isprintable()


class Questions:
    """Asks the store about requests. Called without the lock.

    Where it cannot say, nothing is known: a tool has asked, and must not be asked again for
    that. The write that opens the request meets whatever is there.
    """

    def __init__(self, core: Core, store: RunStore, name: str) -> None:
        self._core = core
        self._store = store
        self._name = name

    def shared_login(self, handle: Handle, request: Request) -> Request | None:
        """Return the open request of another run for the same login; None without one."""
        login = login_key(request)
        if login is None:
            return None
        try:
            records = self._store.requests(self._name, state="open", login=login, limit=1)
            found = next((asked(record).request for record in records), None)
        except StoreError as error:
            logger.warning("whether a login is asked for already cannot be read: %s", error)
            return None
        if found is not None:
            with self._core.lock:
                if handle._tree is not None:
                    handle._tree.requests |= {found.id}
        return found

    def is_known(self, request_id: str) -> bool:
        """Whether a request with that id is, or was, in the store."""
        try:
            return self._store.request(self._name, request_id) is not None
        except StoreError as error:
            logger.warning("whether %s is in use cannot be read: %s", request_id, error)
            return False

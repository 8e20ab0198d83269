"""Where conversations, long outputs and runs are kept.

`conversations` and `outputs` have the protocols and the stores; `journal` is the form of a
conversation's file, `files` what the two file stores share. `base` and `records` say what a
store of runs is; `memory`, `sqlite` and `postgres` are three, `sql` is what they share,
`opening` makes one of a URL, and `copying` takes runs from one to another.

Names load at first use: with a store comes its database's driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolnexus.stores.base import RunStore
    from toolnexus.stores.copying import copy_runs
    from toolnexus.stores.memory import MemoryStore
    from toolnexus.stores.opening import open_store
    from toolnexus.stores.postgres import PostgresStore
    from toolnexus.stores.sqlite import SqliteStore

__all__ = [
    "MemoryStore",
    "PostgresStore",
    "RunStore",
    "SqliteStore",
    "copy_runs",
    "open_store",
]

_HOMES: Final = {
    "MemoryStore": "memory",
    "PostgresStore": "postgres",
    "RunStore": "base",
    "SqliteStore": "sqlite",
    "copy_runs": "copying",
    "open_store": "opening",
}


# A type checker must not learn that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

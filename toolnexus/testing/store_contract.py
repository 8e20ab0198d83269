"""The contract of a run store, as tests that run over any store.

    from toolnexus.testing import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, directory):
            return MyStore(directory / "runs")

Every sentence of `toolnexus.stores.base` is a test here. They take about ten seconds.
"""

from __future__ import annotations

from toolnexus.testing.store_suite.asking import AskingSuite
from toolnexus.testing.store_suite.changing import ChangingSuite
from toolnexus.testing.store_suite.keeping import KeepingSuite
from toolnexus.testing.store_suite.owning import OwningSuite
from toolnexus.testing.store_suite.racing import RacingSuite
from toolnexus.testing.store_suite.taking import TakingSuite


class StoreContract(
    OwningSuite, TakingSuite, ChangingSuite, AskingSuite, KeepingSuite, RacingSuite
):
    """Tests of a store. A subclass says how one is made.

    `make_store(directory)` opens the store that belongs to a directory. The directory is new
    and empty for each test; called with the same one again, also in another process, it has to
    open the same runs. A store that other processes cannot share sets `can_be_shared` to
    False. One whose time can be moved overrides `let_pass`; else the tests wait some
    milliseconds for their leases to run out.
    """

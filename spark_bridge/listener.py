"""A listener that joins what ddflow tells of a batch to what Spark tells of it, for any number of queries.

Invariant: the progress of a query that feeds a state carries the epoch that its batch became, by the query's id and the
batch's number; that of any other query is left alone. Spark sends progress late and from a thread of its own, when the
query may be further, or gone; so accounts are kept by id in the process that commits, for a while longer than the
queries. On Spark Connect, where another process commits, they are read from the state. It changes nothing, and no
query waits for it.

>>> from types import SimpleNamespace
>>> listener = Listener()
>>> listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(id="somebody else's", batchId=3)))
>>> list(listener.recent)
[]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_bridge.stats import ACCOUNTS, TOLD

Callback = Callable[[Any], Any]
"""Is called with a ``StreamingQueryProgress`` that has ``ddflow`` too."""


class Listener(StreamingQueryListener):
    """To be given to ``spark.streams.addListener``.

    ``callback``: is called with every progress of a query that feeds a state: Spark's ``StreamingQueryProgress`` with
    one attribute more, ``ddflow``: a `spark_bridge.stats.Batch`, or None where no epoch is known of it, as for a
    trigger that found no rows.  ``recent``: the last `RECENT` of them.  What it raises, Spark logs.
    """

    RECENT: Final = TOLD

    def __init__(self, callback: Callback | None = None) -> None:
        self.callback = callback
        self.recent: deque[Any] = deque(maxlen=self.RECENT)

    def onQueryProgress(self, event: Any) -> None:
        """Join, keep and call back.  O(epochs that are told)."""
        progress = event.progress
        teller = ACCOUNTS.of(str(progress.id))
        if teller is None:
            return
        found = [each for each in teller.stats() if each.batch == progress.batchId]
        progress.ddflow = found[-1] if found else None
        self.recent.append(progress)
        if self.callback is not None:
            self.callback(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing: what feeds a state is known by its first batch."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing: its last progress may be still to come."""

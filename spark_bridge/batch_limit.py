"""Following a state so many epochs a batch, and to what is there now: what Spark asks of an input from 4.2 on.

Invariant: as in ``following``; and no batch has more epochs than it may, but for the first, which is what there is.
Spark knows limits of rows, bytes and files, so epochs go for files; and a query that is to take what is available ends
where the state was when it asked, though epochs are committed on.

>>> follower = Limited("nowhere", "owner", None, "people", pa.schema([]), "earliest", 3)
>>> follower.initialOffset(), follower.getDefaultReadLimit()
({'epoch': -1, 'mark': ''}, ReadMaxFiles(max_files=3))
"""

from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from ddflow.plan.plan import Plan
from ddflow.storage.manifest import Manifest
from spark_bridge.change_stream import Follower, Offset


class Limited(Follower, SupportsTriggerAvailableNow):
    """``most``: epochs of a batch, None for all there are."""

    def __init__(
        self, store: str, trust: str, flow: Plan | None, name: str, columns: pa.Schema, begin: str, most: int | None
    ) -> None:
        super().__init__(store, trust, flow, name, columns, begin)
        self.most = most
        self._target: Manifest | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_target": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        """How many epochs a batch has."""
        return ReadAllAvailable() if self.most is None else ReadMaxFiles(self.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is committed now."""
        self._target = self._newest()

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Return the last epoch of the next batch. O(epochs kept). Raises `SnapshotExpired` if it cannot be read."""
        assert start is not None
        manifest = self._target or self._newest()
        if manifest.epoch == start["epoch"] or not manifest.epoch:
            self._compare(manifest, start)
            return start
        if start["epoch"] < 0:
            return self._whole(manifest)
        last = manifest.epoch
        if isinstance(limit, ReadMaxFiles):
            last = min(last, start["epoch"] + limit.max_files)
        self._epochs(manifest, start, last)
        return self._offset(manifest, last)

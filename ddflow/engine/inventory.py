"""An inventory: what one partition of a state holds, as a record whose text is a file of its own, and its sheets.

Invariant: a record that was read has the fields that are written, each in its range, and no others; anything else is
`CorruptState` with the path to it. What its files hold is looked at by who fills an arrangement (``trace.checkpoint``)
or a batcher from them.

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.storage.manifest import newest
>>> from ddflow.storage.memory import MemoryStore
>>> flow, store = dd.Flow(), MemoryStore()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with flow.open(store) as engine:
...     _ = engine.step({"people": pa.table({"id": [1, 2]})}, time=7)
>>> stored = StoredInventory.read(store, newest(store).inventories[0])
>>> stored.of.inputs["people"].arrived, stored.of.totals["applied"], stored.at("inputs", "people").partition(", ")[2]
(2, 2, 'inputs, people')
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.json import Decoder

from ddflow.dataflow.batcher.checkpoint import PendingRecord
from ddflow.storage.fields import Instant, Natural, Strict, decoded
from ddflow.storage.protocol import Blob, Store
from ddflow.storage.sheets import Text, read
from ddflow.trace.records import ArrangementRecord


class InputRecord(Strict, frozen=True):
    """An input.

    ``arrived``: the number of its events. ``greatest``: of their times. ``rows``: the held rows. ``runs``: the pending
    events. ``horizon``: the greatest order of all steps, if keys expire and there was one. ``table``: of its messages,
    if it is known.
    """

    arrived: Natural
    greatest: Instant
    rows: ArrangementRecord
    runs: list[PendingRecord]
    horizon: Instant | None = None
    table: str | None = None


class OperatorRecord(Strict, frozen=True):
    """An operator that keeps state."""

    arrangements: list[ArrangementRecord]


class Inventory(Strict, frozen=True):
    """``inputs``: by name.  ``operators``: by the ids of their nodes.  ``totals``: events by verdict,
    and how many of them are `ddflow.dataflow.verdicts.GONE`."""

    inputs: dict[str, InputRecord]
    operators: dict[str, OperatorRecord]
    totals: dict[str, Natural]


_DECODER: Final = Decoder(Inventory)


class StoredInventory(NamedTuple):
    """An inventory in a file. ``what``: its place, for messages. ``of``: its content. ``text``: its text and sheets."""

    what: str
    of: Inventory
    text: Text

    @classmethod
    def read(cls, store: Store, part: Blob) -> StoredInventory:
        """Read the inventory of a partition. O(bytes). Raises `CorruptState`."""
        return cls.parse(read(store, part), f"the file {part.name} of {store.where}")

    @classmethod
    def parse(cls, text: Text, what: str) -> StoredInventory:
        """Parse the text of an inventory. Costs and errors are those of `read`."""
        return cls(what, decoded(_DECODER, text.data, what), text)

    def at(self, kind: str, name: str) -> str:
        """Name the place of an input or an operator in it, for messages."""
        return f"{self.what}, {kind}, {name[:80]}"

"""An inventory: an arrangement as plain values and files, for a commit; and the arrangement that it stands for.

Invariant: `restore` gives an arrangement that reads, at every time, as the one that `take` was asked of, and goes on
with the merges that were under way where they were. A commit must cost what changed, so a batch is written once, when
it is new, and named from then on; and a merge half done is kept half done: what it has eaten of its inputs is said by
where their parts begin. The index is not kept: it is made again from the versions, oldest run first, unless there is a
budget; then all runs go beneath, where they are searched. Whatever comes from a file is looked at before a kernel sees
it.

>>> from ddflow.storage.memory import MemoryStore
>>> vault, schema = Vault(MemoryStore()), pa.schema({"k": pa.int64()})
>>> arranged = Arrangement(schema, wide=False, words=0)
>>> arranged.slots.lasting, zero = True, np.array([0])
>>> batch = Batch.of([5], [3], [True], pa.table({"k": [1]}))
>>> arranged.apply([Change(batch, np.array([5], np.uint64), zero, zero, 0, born=1, buried=0)], upper=4, since=3)
>>> record = Record(json.loads(json.dumps(take(arranged, vault))), "an example")
>>> again = Arrangement(schema, wide=False, words=0)
>>> restore(again, record, vault, indexed=True, made=lambda rows: (NONE, NONE, NONE))  # nothing is compressed
>>> again.read().to_pylist(), again.upper, again.keys
([{'k': 1}], 4, 1)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints
from ddflow.columns.rows import Rows
from ddflow.errors import CorruptState
from ddflow.kernels.check import first_wrong
from ddflow.kernels.gather import SLOTS
from ddflow.storage.batch_store import Deposit, Kept, Vault
from ddflow.storage.record import Record
from ddflow.time import CLOSED, NEVER, Description
from ddflow.trace.arrangement import Arrangement, Change
from ddflow.trace.batch import Batch
from ddflow.trace.batch_file import Layout, Made, filed, unfiled, whole
from ddflow.trace.merge import Merge
from ddflow.trace.run import Part, Run, Slots
from ddflow.trace.spill import WORDS, Files, Sieve, sifted, spilled

__all__ = ["Batch", "Change", "json", "restore", "take"]

CHUNK = 1 << 16
"""Versions that go into the index together."""


class Written:
    """The file of a resident batch.  ``names``: of its payload's columns.  ``plain``: as an inventory says it."""

    def __init__(self, columns: Deposit, layout: Layout, names: list[str]) -> None:
        self.columns, self.layout, self.names = columns, layout, names
        self.plain: dict[str, Any] = {}

    def drop(self) -> None:
        """Let it go."""
        self.columns.drop()

    def verify(self) -> None:
        """Where the batch is over the bytes of the file, compare these with their checksum.  Raises `CorruptState`."""
        if isinstance(self.columns, Kept):
            self.columns.verify()


def take(arranged: Arrangement, vault: Vault) -> dict[str, Any]:
    """Write what is in no file yet; the arrangement as plain values.  O(bytes not written yet + batches).

    Raises `StorageFull`, `StorageFailed`; the arrangement is then as before.
    """
    slots, numbers = arranged.slots, dict[int, int]()
    shapes: list[list[str]] = []
    batches: list[dict[str, Any]] = []
    for slot, batch in enumerate(slots.held):
        if batch is not None:
            numbers[slot] = len(batches)
            batches.append(_batch(slots, slot, batch, vault, shapes))

    def run(run: Run) -> dict[str, Any]:
        parts = [[numbers[part.slot], part.begin, part.end] for part in run.parts]
        return {**run.description._asdict(), "parts": parts}

    def item(item: Run | Merge) -> dict[str, Any]:
        if isinstance(item, Run):
            return run(item)
        return {
            "inputs": [run(each) for each in item.inputs],
            "output": run(item.output),
            "whole": item.whole,
            "first": str(item.first),
            "credit": item.credit,
        }

    items = [item(each) for each in [*arranged.beneath.items, *arranged.spine.items]]
    names = ("since", "upper", "latest", "keys", "tombstones", "lapsed")
    return {
        **{name: int(getattr(arranged, name)) for name in names},
        "shapes": shapes,
        "batches": batches,
        "items": items,
    }


def _batch(slots: Slots, slot: int, batch: Batch, vault: Vault, shapes: list[list[str]]) -> dict[str, Any]:
    """A batch as plain values, written to a file where it is in none."""
    file: Files | Written | None = batch.mapped or slots.files.get(slot)
    if file is None:
        record, layout = filed(batch, vault.compresses)
        file = Written(vault.deposit(record), layout, batch.rows.table.schema.names)
        slots.wrote(slot, file)
    shape = file.names
    if shape not in shapes:
        shapes.append(shape)
    if not file.plain:
        sieve = _blob(file.words) if isinstance(file, Files) else None
        file.plain = {"file": _blob(file.columns), "rows": len(batch), "sieve": sieve, **file.layout.to_json()}
    return file.plain | {"shape": shapes.index(shape)}


def _blob(file: Deposit) -> list[Any]:
    assert isinstance(file, Deposit), "what is durable is in the vault"
    return file.blob.to_json()


def restore(
    arranged: Arrangement,
    record: Record,
    vault: Vault,
    indexed: bool,
    made: Made,
    sieved: bool = True,
    home: Vault | None = None,
) -> None:
    """Fill an empty arrangement with what an inventory says.  O(bytes); every file is verified.

    ``indexed``: all runs are resident (mapped, that is, unless they are compressed) and indexed; else all are beneath.
    ``made``: for rows whose columns are not those they were written with, or that are compressed.  ``sieved``: whether
    runs beneath will be searched, and not only read.  ``home``: where what is compressed is written anew, to be read
    where it lies; None: it is held in memory.  Raises `CorruptState`, and what the home raises.
    """
    slots = arranged.slots
    slots.lasting = True
    arranged.since, arranged.upper, arranged.latest = (
        record.number(name, NEVER, CLOSED) for name in ("since", "upper", "latest")
    )
    shapes = [_fields(names, arranged.schema, record) for names in record.list("shapes")]
    loaded = [
        _load(each, shapes, vault, arranged, made, not indexed and sieved, home) for each in record.records("batches")
    ]
    if len(loaded) >= SLOTS:
        raise _wrong(record, f"it has {len(loaded):,} batches")
    target = None if indexed else partial(spilled, filing=vault)
    items = _Items(arranged, loaded, target, vault if sieved else None, indexed)
    (arranged.spine if indexed else arranged.beneath).items[:] = [items.item(each) for each in record.records("items")]
    items.check(record)
    arranged.keys, arranged.buried = (record.number(n, 0, items.versions) for n in ("keys", "tombstones"))
    arranged.useless(record.number("lapsed", 0, arranged.buried) if "lapsed" in record else 0)
    if indexed:
        _index(arranged)
    elif items.versions:
        arranged.index.keep_deletions()
        arranged.spine.keeps = True


class _Items:
    """Runs and merges of an inventory, whose batches get their numbers as they are named."""

    def __init__(
        self, arranged: Arrangement, loaded: list[tuple[Batch, Any]], target: Any, vault: Vault | None, indexed: bool
    ) -> None:
        self.arranged, self.loaded, self.target, self.vault, self.indexed = arranged, loaded, target, vault, indexed
        self.used: set[int] = set()
        self.versions = 0

    def item(self, record: Record) -> Run | Merge:
        """A run, or a merge under way."""
        if "inputs" not in record:
            return self._run(record)
        first = record.text("first", 20)
        inputs, output = [self._run(each) for each in record.records("inputs")], self._run(record.record("output"))
        if not inputs or not first.isascii() or not first.isdecimal() or int(first) >= 2**64:
            raise _wrong(record, "its merge cannot be gone on with")
        low, high = output.description.lower, output.description.upper
        if (inputs[0].description.lower, inputs[-1].description.upper) != (low, high):
            raise _wrong(record, "a merge speaks of other times than its inputs")
        self._meet([run.description for run in inputs], record)
        merge = Merge(inputs, record.flag("whole"), self.target)
        # A piece may be larger than what was paid for, so that the credit is less than nothing.
        merge.output, merge.first, merge.credit = output, int(first), record.number("credit", NEVER, CLOSED)
        return merge

    def _run(self, record: Record) -> Run:
        description = Description(*(record.number(name, NEVER, CLOSED) for name in ("lower", "upper", "since")))
        parts: list[Part] = []
        for given in record.list("parts"):
            part = self._part(given, record)
            if parts and self._high(parts[-1], -1) >= self._high(part, 0):
                raise _wrong(record, "the files of a run overlap")
            parts.append(part)
            self.versions += part.end - part.begin
        return Run(description, parts)

    def _high(self, part: Part, at: int) -> int:
        return int(self.arranged.slots[part.slot].high[part.begin if at == 0 else part.end - 1])

    def _part(self, given: Any, record: Record) -> Part:
        if not (isinstance(given, list) and [type(each) for each in given] == [int] * 3):
            raise _wrong(record, f"{given!r} is no part of a run")
        number, begin, end = given
        if not 0 <= number < len(self.loaded) or number in self.used:
            raise _wrong(record, f"the batch {number} is not there, or is used twice")
        self.used.add(number)
        batch, file = self.loaded[number]
        if not 0 <= begin < end <= len(batch):
            raise _wrong(record, f"rows {begin} to {end} of a batch of {len(batch):,}")
        if not self.indexed and batch.mapped is None and self.vault is not None:
            batch = replace(batch, mapped=sifted(file.columns, file.layout, self.vault).mapped)
        slot = self.arranged.slots.put(batch).slot
        if batch.mapped is None:
            self.arranged.slots.files[slot] = file
        return Part(slot, begin, end)

    def _meet(self, descriptions: list[Description], record: Record) -> None:
        if not all(older.meets(newer) for older, newer in pairwise(descriptions)):
            raise _wrong(record, "its runs leave out times, or overlap")

    def check(self, record: Record) -> None:
        """Raise `CorruptState` unless every batch is used, and every time is spoken of once."""
        if len(self.used) != len(self.loaded):
            raise _wrong(record, "it names batches that no run has")
        items = self.arranged.spine.items or self.arranged.beneath.items
        self._meet([(each if isinstance(each, Run) else each.output).description for each in items], record)


def _fields(names: Any, schema: pa.Schema, record: Record) -> list[pa.Field]:
    """The columns of a payload by name."""
    known = isinstance(names, list) and all(isinstance(n, str) and n in schema.names for n in names)
    if not known or names != [name for name in schema.names if name in names]:
        raise _wrong(record, f"its files have the columns {names!r}, which the plan has not")
    return [schema.field(name) for name in names]


def _load(
    record: Record,
    shapes: list[list[pa.Field]],
    vault: Vault,
    arranged: Arrangement,
    made: Made,
    sieved: bool,
    home: Vault | None,
) -> tuple[Batch, Any]:
    """A batch from its file, and the file where the batch does not hold it."""
    layout, fields = Layout.of(record), shapes[record.number("shape", 0, len(shapes) - 1)]
    rows = record.number("rows", 1)
    wanted = layout.schema(pa.schema(fields))
    if (
        ("low" in layout.own) != arranged.index.wide
        or layout.words != arranged.index.words
        or "value" not in layout.own
    ):
        raise _wrong(record, f"its own columns are {layout.own} and {layout.words} of order, which the plan has not")
    kept = vault.open(record.blob("file"), wanted, rows, layout.compressed)
    file = Written(kept, layout, [f.name for f in fields])
    batch = unfiled(kept.batch, layout)
    if layout.compressed:
        # What lies in the file is not what is held.
        batch, file.columns = whole(batch, made(_payload(batch, arranged.schema))), Deposit(vault, kept.blob, True)
        if home is not None:
            plain, file.layout = filed(batch)
            written = home.write(plain)
            batch, file.columns = unfiled(written.batch, file.layout), written
    timed, told = (batch.time if layout.time is None else NONE.view(np.int64)), layout.live is None
    wrong = first_wrong(batch.high, batch.low, timed, batch.live if told else np.empty(0, np.uint8))
    if wrong >= 0:
        raise _wrong(record, f"row {wrong} of {kept.blob.name} is not in order")
    if sieved and "sieve" in record and len(fields) == len(arranged.schema):
        sieve = record.blob("sieve")
        words = Sieve.room(int(batch.high[0]), int(batch.high[-1]), rows)[2]
        held = vault.open(sieve, pa.schema({WORDS: pa.uint64()}), words)
        return replace(batch, mapped=Files(kept, layout, held, Sieve.of(batch, held.batch))), None
    return _widened(batch, arranged.schema, made), file


def _widened(batch: Batch, schema: pa.Schema, made: Made) -> Batch:
    """A batch with null in the columns that it was written without, and the hashes that its rows have with them."""
    if len(batch.rows.columns) == len(schema):
        return batch
    payload = _payload(batch, schema)
    return replace(batch, rows=Rows(payload), value=made(payload)[2])


def _payload(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch's rows, with null in the columns that it was written without."""
    there = dict(zip(batch.rows.table.schema.names, batch.rows.columns, strict=True))
    columns = [there[f.name] if f.name in there else pa.nulls(len(batch), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _index(arranged: Arrangement) -> None:
    """Make the index of all versions, older runs first, so that the newest of a key stays."""
    index, slots = arranged.index, arranged.slots
    versions = sum(part.end - part.begin for part in arranged.spine.parts)
    index.room(arranged.keys + arranged.tombstones + min(CHUNK, versions))
    for run in arranged.spine.runs:
        # Deletions that need not be kept stand in the index all the same until newer runs are told.
        index.room(sum(last.size for part in run.parts for last in _lasts(slots[part.slot], part)))
        for part in run.parts:
            batch = slots[part.slot]
            for last in _lasts(batch, part):
                index.write(
                    np.full(last.size, -1),
                    index.built,
                    last,
                    batch.high,
                    batch.low,
                    batch.value,
                    batch.live,
                    batch.order,
                    part.slot,
                )
            if batch.value.size:
                slots.wrote(part.slot, slots.files[part.slot])


def _lasts(batch: Batch, part: Part) -> Iterator[Ints]:
    """The rows that are the last of their keys in a part, some at a time."""
    for begin in range(part.begin, part.end, CHUNK):
        yield _last(batch, begin, min(begin + CHUNK, part.end), part.end)


def _last(batch: Batch, begin: int, end: int, of: int) -> Ints:
    """The rows of [begin, end) that are the last of their keys in the part, which ends at ``of``."""
    to = min(end + 1, of)
    same = batch.high[begin + 1 : to] == batch.high[begin : to - 1]
    if batch.low.size:
        same &= batch.low[begin + 1 : to] == batch.low[begin : to - 1]
    last = np.ones(end - begin, bool)
    last[: same.size] = ~same
    return np.flatnonzero(last) + begin


def _wrong(record: Record, found: str) -> CorruptState:
    return CorruptState(
        record.what,
        found,
        "it was not written by ddflow, or damaged; restore it from a copy, or go back with ddflow rollback",
    )

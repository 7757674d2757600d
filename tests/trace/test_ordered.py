"""Test an ordered arrangement beside a dict: rows with multiplicities by group and order, in any medium.

Drawn steps go through the arrangement: in memory, spilled, or through an inventory. After each step, every identity,
every group's order, and reads at every time equal the dict's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from msgspec.json import Decoder

from ddflow.columns.hashing import NONE
from ddflow.columns.rows import Rows
from ddflow.columns.sorting import sort_by_words
from ddflow.kernels.resolve import LIVE
from ddflow.storage.fields import decode_record, encode_record
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.scratch import ScratchStore
from ddflow.storage.memory import MemoryStore
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, Batch
from ddflow.trace.checkpoint import checkpoint_arrangement, restore_arrangement
from ddflow.trace.group_rows import find_group_rows
from ddflow.trace.records import ArrangementRecord

SCHEMA = pa.schema({"group": pa.uint64(), "first": pa.uint64(), "second": pa.int64(), "times": pa.int64()})
TOP = 2**64 - 1
IDENTITIES = st.tuples(
    st.sampled_from([0, 7, 2**63, TOP]), st.sampled_from([0, 3, TOP]), st.sampled_from([-5, -1, 0, 4, 2**62])
)
STEPS = st.lists(st.dictionaries(IDENTITIES, st.integers(-2, 2), max_size=9), min_size=1, max_size=10)
Identity = tuple[int, int, int]


def unsigned(identity: Identity) -> tuple[int, int, int]:
    """Words compare without a sign."""
    return identity[0], identity[1], identity[2] % 2**64


@dataclass
class Beside:
    """An arrangement, and what it should hold at each time."""

    arranged: Arrangement
    since: int = 0
    now: dict[Identity, int] = field(default_factory=dict)
    was: list[dict[Identity, int]] = field(default_factory=list)

    def step(self, changes: dict[Identity, int]) -> None:
        """Give identities new multiplicities, 0 for none, at the next time."""
        time = len(self.was)
        given = list(changes)
        high, low = (np.array([each[i] for each in given], np.uint64) for i in (0, 1))
        order = np.array([each[2] for each in given], np.int64).reshape(-1, 1)
        by = sort_by_words(high, low, order)
        order, wanted = order.take(by.permutation, axis=0), [given[i] for i in by.permutation]
        assert wanted == sorted(given, key=unsigned)
        prior = self.arranged.look_up_keys(by.high, by.low, by.starts[:-1], order=order)
        held = np.where(prior.reference & LIVE != 0, prior.value.view(np.int64), 0)
        assert held.tolist() == [self.now.get(each, 0) for each in wanted]
        times = np.array([changes[each] for each in wanted], np.int64)
        rows = pa.table([by.high, by.low, order[:, 0], times], schema=SCHEMA)
        n = times.size
        live = (times != 0).astype(np.uint8)
        batch = Batch(by.high, by.low, np.full(n, time), live, NONE, order, Rows(rows.combine_chunks()))
        added = int(np.count_nonzero(times)) - int(np.count_nonzero(held))
        last = np.arange(n)
        change = ArrangementChange(batch, times.view(np.uint64), last, prior.place, self.arranged.index.built, added, 0)
        self.arranged.apply_changes([change], time + 1, self.since)
        self.now = {key: n for key, n in {**self.now, **changes}.items() if n}
        self.was.append(self.now)

    def check(self) -> None:
        """It holds what it should, by group and as of every time that can be read."""
        self.arranged._check_invariants()
        groups = sorted({each[0] for each in self.now} | {1})
        found = find_group_rows(self.arranged, np.array(groups, np.uint64))
        for i, group in enumerate(groups):
            here = sorted((each for each in self.now if each[0] == group), key=unsigned)
            assert found.values[found.begins[i] : found.begins[i + 1]].tolist() == [self.now[each] for each in here]
        for time in range(self.since, len(self.was)):
            rows = self.arranged.read(time).to_pylist()
            assert {(r["group"], r["first"], r["second"]): r["times"] for r in rows} == self.was[time]
            assert len(rows) == len(self.was[time])


def fresh() -> Arrangement:
    return Arrangement(SCHEMA, True, 1, ordered=True)


@given(steps=STEPS, retain=st.integers(0, 3))
@effort(60)
def test_in_memory(steps: list[dict[Identity, int]], retain: int) -> None:
    beside = Beside(fresh())
    for number, step in enumerate(steps):
        beside.since = max(number - retain, 0)
        beside.step(step)
        beside.check()


@given(steps=STEPS, retain=st.integers(0, 3), shares=st.lists(st.sampled_from([0, 1 << 40]), min_size=10, max_size=10))
@effort(40)
def test_spilled(
    steps: list[dict[Identity, int]],
    retain: int,
    shares: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    beside = Beside(fresh())
    place: Path = tmp_path_factory.mktemp("spill")
    with BatchStore(ScratchStore(str(place))) as store:
        for number, step in enumerate(steps):
            beside.since = max(number - retain, 0)
            beside.step(step)
            beside.arranged.spill(store, shares[number])
            beside.check()


@given(steps=STEPS, indexed=st.booleans())
@effort(40)
def test_from_an_inventory(steps: list[dict[Identity, int]], indexed: bool) -> None:
    store = BatchStore(MemoryStore())
    beside = Beside(fresh())
    beside.arranged.slots.lasting = True
    for number, step in enumerate(steps):
        beside.since = number
        beside.step(step)
        record = decode_record(
            Decoder(ArrangementRecord), encode_record(checkpoint_arrangement(beside.arranged, store)), "a test"
        )
        again = fresh()
        restore_arrangement(again, record, "a test", store, indexed, lambda rows: (NONE, NONE, NONE))
        beside.arranged = again
        beside.check()

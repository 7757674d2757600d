"""Test an arrangement of differences beside a dict: rows with multiplicities by group, in any medium.

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
from ddflow.columns.names import TIMES
from ddflow.columns.rows import Rows
from ddflow.storage.fields import decode_record, encode_record
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.scratch import ScratchStore
from ddflow.storage.memory import MemoryStore
from ddflow.trace.batch import make_difference_change
from ddflow.trace.checkpoint import checkpoint_arrangement, restore_arrangement
from ddflow.trace.differences import DifferenceArrangement
from ddflow.trace.records import ArrangementRecord

SCHEMA = pa.schema({"first": pa.uint64(), "second": pa.uint64(), "third": pa.int64()})
TOP = 2**64 - 1
IDENTITIES = st.tuples(
    st.sampled_from([0, 7, 2**63, TOP]), st.sampled_from([0, 3, TOP]), st.sampled_from([-5, -1, 0, 4, 2**62])
)
STEPS = st.lists(st.dictionaries(IDENTITIES, st.integers(-2, 2).filter(bool), max_size=9), min_size=1, max_size=10)
Identity = tuple[int, int, int]


def unsigned(identity: Identity) -> tuple[int, int, int]:
    """Words compare without a sign."""
    return identity[0], identity[1], identity[2] % 2**64


@dataclass
class Beside:
    """An arrangement, and what it should hold at each time."""

    arranged: DifferenceArrangement
    since: int = 0
    now: dict[Identity, int] = field(default_factory=dict)
    was: list[dict[Identity, int]] = field(default_factory=list)

    def step(self, changes: dict[Identity, int]) -> None:
        """Change the multiplicities of identities at the next time."""
        time, given = len(self.was), sorted(changes, key=unsigned)
        high, low = (np.array([each[i] for each in given], np.uint64) for i in (0, 1))
        more = np.array([each[2] for each in given], np.int64).reshape(-1, 1)
        assert self.arranged.sum_rows(high, low, more).tolist() == [self.now.get(each, 0) for each in given]
        rows = Rows(pa.table([high, low, more[:, 0]], schema=SCHEMA).combine_chunks())
        diffs = np.array([changes[each] for each in given], np.int64)
        change = make_difference_change(high, low, np.full(len(given), time), diffs, more, rows)
        self.arranged.apply_changes([change], time + 1, self.since)
        self.now = {each: n for each in {**self.now, **changes} if (n := self.now.get(each, 0) + changes.get(each, 0))}
        self.was.append(self.now)

    def check(self) -> None:
        """It holds what it should, by group and as of every time that can be read."""
        self.arranged._check_invariants()
        groups = sorted({each[:2] for each in self.now} | {(1, 1)})
        found = self.arranged.find_group_rows(*(np.array([each[i] for each in groups], np.uint64) for i in (0, 1)))
        for i, group in enumerate(groups):
            here = sorted((each for each in self.now if each[:2] == group), key=unsigned)
            assert found.values[found.begins[i] : found.begins[i + 1]].tolist() == [self.now[each] for each in here]
        for time in range(self.since, len(self.was)):
            rows = self.arranged.read(time).to_pylist()
            assert {(r["first"], r["second"], r["third"]): r[TIMES] for r in rows} == self.was[time]
            assert len(rows) == len(self.was[time])


def fresh() -> DifferenceArrangement:
    return DifferenceArrangement(SCHEMA, 1)


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

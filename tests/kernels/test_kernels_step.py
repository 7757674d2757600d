"""The kernels of a small step give what the separate kernels give."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from ddflow.columns import hashing
from ddflow.columns.hashing import NONE, RowHasher, Secret, build_hash_plan
from ddflow.columns.rows import Rows
from ddflow.kernels.identity import hash_rows
from ddflow.operators import count
from ddflow.operators.count import RunningCount
from ddflow.operators.updates import Updates
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.plan.inputs.bind import bind_upserts
from ddflow.plan.inputs.spec import Upsert

SECRET = Secret(11, 22)
COLUMNS = {
    "i8": pa.array([1, -2, None, 4], pa.int8()),
    "u16": pa.array([1, 65535, None, 4], pa.uint16()),
    "i32": pa.array([-1, 5, 6, None], pa.int32()),
    "u64": pa.array([0, 2**64 - 1, 6, None], pa.uint64()),
    "f64": pa.array([0.0, -0.0, float("nan"), None]),
    "flag": pa.array([True, False, None, True]),
    "text": pa.array(["", "abc", None, "a text of more than eight bytes"]),
    "large": pa.array(["", "abc", None, "a text of more than eight bytes"], pa.large_string()),
    "bytes": pa.array([b"\0", b"", None, b"12345678"]),
    "day": pa.array([1, 2, None, 4], pa.date32()),
    "whole": pa.array([9, 8, 7, 6]),
}


@given(
    names=st.lists(st.sampled_from([*COLUMNS]), max_size=4, unique=True), begin=st.integers(0, 2), small=st.booleans()
)
def test_rows_hashed_by_address_have_the_hashes_of_their_columns(names: list[str], begin: int, small: bool) -> None:
    batch = pa.record_batch({"no": [0] * 4, **{name: COLUMNS[name] for name in names}}).slice(begin)
    wanted, n = batch.select(names), batch.num_rows
    hasher, plan = RowHasher(wanted.schema, SECRET), build_hash_plan(wanted.schema, batch.schema.names)
    assert plan is not None
    if not small:
        hasher.plan = None
    high, low = hasher.compute_identities(wanted.columns, n)
    out, more = np.empty_like(high), np.empty_like(low)
    hash_rows(Rows(batch).addresses, plan, *SECRET.words, True, out, more)
    assert (out.tolist(), more.tolist()) == (high.tolist(), low.tolist())
    hash_rows(Rows(batch).addresses, plan, *SECRET.words, False, out, NONE)
    assert out.tolist() == hasher.compute_value_hashes(wanted.columns, n).tolist()


@pytest.mark.parametrize("kind", [pa.float32(), pa.decimal128(9, 2), pa.list_(pa.int64()), pa.binary(3)])
def test_other_types_are_not_hashed_by_address(kind: pa.DataType) -> None:
    assert build_hash_plan(pa.schema({"v": kind})) is None


SCHEMA = pa.schema({"k": pa.int64(), "s": pa.string(), "v": pa.int64(), "at": pa.int64()})
EVENT = st.tuples(st.integers(0, 3), st.sampled_from(["", "x"]), st.none() | st.integers(0, 2), st.integers(0, 3))
SPECS = {
    "one word": Upsert("k", delete="v is null"),
    "two words": Upsert(["s", "k"], delete="v is null"),
    "an order": Upsert("k", order_by="at", delete="v is null"),
    "the first": Upsert("k", order_by="at", tie="first"),
    "the greatest": Upsert("s", order_by="at", tie="greatest", delete="v is null"),
}


def versions(change: Any) -> list[Any]:
    batch = change.batch
    columns = batch.high, batch.low, batch.time, batch.live, change.value, change.last, change.place
    rows = [row if live else None for row, live in zip(batch.rows.table.to_pylist(), batch.live, strict=True)]
    return [*(column.tolist() for column in columns), batch.order.tolist(), rows, *change[4:]]


@pytest.mark.parametrize("spec", SPECS)
@given(steps=st.lists(st.lists(st.tuples(EVENT, st.integers(0, 2)), min_size=1, max_size=6), max_size=4))
def test_a_small_step_resolves_like_any_other(spec: str, steps: list[Any]) -> None:
    upsert, arrived = RunningUpsert(bind_upserts("r", SCHEMA, SPECS[spec]), SECRET), 0
    for number, step in enumerate(steps):
        stamps = np.array(sorted(3 * number + late for _, late in step))
        columns = zip(*(event for event, _ in step), strict=True)
        rows = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
        events = Events(rows, stamps, stamps, arrived + np.arange(stamps.size))
        times, since = np.unique(stamps), 3 * number + 1
        few = upsert.small.resolve(upsert, events, times, since)
        assert few is not None
        seen = few.updates(SCHEMA).to_table(SCHEMA, pa.int64()).to_pylist(), few.counts.tolist()
        held = [versions(change) for change in few.changes]
        whole = upsert.resolve(events, times, since, winners=True)
        assert seen == (whole.updates(SCHEMA).to_table(SCHEMA, pa.int64()).to_pylist(), whole.counts.tolist())
        assert held == [versions(change) for change in whole.changes if len(change.batch)]
        upsert.apply(whole, 3 * number + 3, since)
        arrived += stamps.size


ROW = st.tuples(st.integers(0, 2), st.sampled_from(["a", None]), st.integers(-2, 2), st.integers(0, 2))


@pytest.mark.parametrize("names", [["k"], ["s"], ["k", "s"], []])
@given(steps=st.lists(st.lists(ROW, min_size=1, max_size=7), max_size=4))
def test_a_small_step_counts_like_any_other(names: list[str], steps: list[Any]) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("s", pa.string())])
    groups = pa.schema([schema.field(name) for name in names])
    running = RunningCount(groups, "n", SECRET)
    for number, step in enumerate(steps):
        step = sorted(step, key=lambda row: row[3])
        rows = pa.table({"k": [row[0] for row in step], "s": pa.array([row[1] for row in step], pa.string())})
        ranks, diffs = np.array([row[3] for row in step], np.int32), np.array([row[2] for row in step])
        updates = Updates(rows.cast(schema), ranks, diffs, 3 * number + np.arange(3))
        few, change = running.compute([updates], 3 * number + 1)
        seen, held = few.to_table(running.schema, pa.int64()).to_pylist(), versions(change)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(count, "SMALL", 0)
            patch.setattr(hashing, "SMALL", 0)
            whole, other = running.compute([updates], 3 * number + 1)
        assert seen == whole.to_table(running.schema, pa.int64()).to_pylist()
        assert held == versions(other)
        running.apply([other], 3 * number + 3, 3 * number + 1)

"""Test ``dd.merge_on_read``: the fold over raw events beside the twin, for any container and any cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import effort
from doors import SECRET, Rows, TwinDoor, plain, schema_of, spec_of, to_arrow
from hypothesis import given, strategies as st
from model import CLOSED
from rules import Refused
from strategies import SHAPES, events, scenarios, shapes, splits

import ddflow as dd
from ddflow.errors import DdflowError, NotArrow, NullKey, SchemaMismatch, SpecError, TieRefused, UnreadableInput
from ddflow.tools.merge_on_read import fold_log

DECIDED = {"null_key": "drop", "lateness": None}


def of_one_input(drawn: Mapping[str, Any]) -> dict[str, Any]:
    """The first input of a drawn scenario, as its only output."""
    return {"inputs": {"a": drawn["inputs"]["a"]}, "outputs": {"out": ["input", "a"]}}


def told(scenario: Mapping[str, Any], calls: list[Rows]) -> Counter[Any]:
    """The rows that live in the twin once it has taken all calls in, without the column of ``ingested=``."""
    twin = TwinDoor(scenario)
    for time, rows in enumerate(calls):
        if twin.twin.holds_back:
            twin.push({"a": rows})
        else:
            twin.step({"a": rows}, time)
    if twin.twin.holds_back:
        twin.advance_to(CLOSED)
    kept = len(twin.columns_of("a")) - ("ingested" in scenario["inputs"]["a"]["spec"])
    return Counter(row[:kept] for row in twin.read("a").elements())


def found(scenario: Mapping[str, Any], log: Any, **options: Any) -> Counter[Any]:
    input = scenario["inputs"]["a"]
    table = dd.merge_on_read(log, spec_of(input["spec"]), schema_of(input["columns"]), secret=SECRET, **options)
    assert "_diff" not in table.column_names
    return Counter(plain(table))


@effort(200)
@given(st.data(), shapes(), st.booleans())
def test_the_fold_gives_what_the_twin_holds_after_the_same_events(
    data: st.DataObject, shape: Callable[[pa.Table], Any], holds_back: bool
) -> None:
    scenario = of_one_input(data.draw(scenarios(holds_back=holds_back)))
    input = scenario["inputs"]["a"]
    rows = data.draw(events(input, most=14))
    try:
        expected = told(scenario, [rows])
    except Refused as refusal:
        with pytest.raises(DdflowError) as error:
            found(scenario, shape(to_arrow(input["columns"], rows)))
        assert type(error.value).__name__ in refusal.kinds
    else:
        assert found(scenario, shape(to_arrow(input["columns"], rows))) == expected


@effort(150)
@given(st.data(), st.booleans(), st.sampled_from(["last", "first", "greatest"]))
def test_calls_of_the_twin_and_parts_of_the_log_may_be_cut_anywhere(
    data: st.DataObject, holds_back: bool, tie: str
) -> None:
    options = DECIDED | {"tie": tie, "noop_ignore": []}
    scenario = of_one_input(data.draw(scenarios(holds_back=holds_back, **options)))
    input = scenario["inputs"]["a"]
    rows = data.draw(events(input, most=14))
    expected = told(scenario, data.draw(splits(rows)))
    parts = [data.draw(shapes())(to_arrow(input["columns"], part)) for part in data.draw(splits(rows))]
    assert found(scenario, iter(parts)) == expected


SPEC = dd.Upsert(key="k", order_by="o", delete=dd.tombstone("gone"))
TABLE = pa.table(
    {
        "k": [1, 1, 2, 3, 3],
        "o": [2, 1, 1, 1, 2],
        "v": ["a", "b", "c", "d", "e"],
        "gone": [False, False, None, False, True],
    }
)
ROWS = [{"k": 1, "o": 2, "v": "a"}, {"k": 2, "o": 1, "v": "c"}]


class Stream:
    """Something that speaks Arrow and is nothing of pyarrow's."""

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested)


LOGS: dict[str, Callable[[], Any]] = {
    **{name: lambda shape=shape: shape(TABLE) for name, shape in SHAPES.items()},
    "a batch": lambda: TABLE.to_batches()[0],
    "a stream": Stream,
    "tables": lambda: [TABLE.slice(0, 2), TABLE.slice(2)],
    "a generator": lambda: (TABLE.slice(i, 1) for i in range(5)),
    "readers, batches and streams": lambda: [TABLE.slice(0, 1).to_reader(), TABLE.slice(1).to_batches()[0], Stream()],
}


@pytest.mark.parametrize("what", LOGS)
def test_the_log_may_be_anything_that_speaks_arrow_or_many_of_it(what: str) -> None:
    out = dd.merge_on_read(LOGS[what](), SPEC)
    assert sorted(out.to_pylist(), key=lambda row: row["k"]) == [{n: row[n] for n in out.column_names} for row in ROWS]


def test_a_part_that_lacks_a_column_has_null_there() -> None:
    out = dd.merge_on_read([TABLE, pa.table({"k": [9], "o": pa.array([1], pa.int8())})], SPEC)
    assert {"k": 9, "o": 1, "v": None} in out.to_pylist()


def test_a_log_without_rows_has_the_columns_of_the_collection() -> None:
    for log in (TABLE.slice(0, 0), []):
        out = dd.merge_on_read(log, SPEC, TABLE.schema)
        assert out.schema == pa.schema({"k": pa.int64(), "o": pa.int64(), "v": pa.string()})
        assert not out.num_rows


WRONG: dict[str, tuple[Any, dd.Upsert, type[DdflowError], str]] = {
    "a number": (5, SPEC, NotArrow, "int does not speak Arrow"),
    "a path": ("orders.parquet", SPEC, UnreadableInput, "there is no such file"),
    "no part and no schema": ([], SPEC, NotArrow, "pass schema="),
    "a number among the parts": ([TABLE, 5], SPEC, NotArrow, "int does not speak Arrow"),
    "values": (pa.array([1]), SPEC, NotArrow, "holds no rows"),
    "a column that was not declared": ([TABLE, pa.table({"k": [1], "z": [1]})], SPEC, SchemaMismatch, "a column 'z'"),
    "no key": ([TABLE, pa.table({"o": [1]})], SPEC, SchemaMismatch, "column 'k' is missing"),
    "a null key": (pa.table({"k": pa.array([None], pa.int64())}), dd.Upsert(key="k"), NullKey, "null in 1 rows"),
    "a tie": (pa.table({"k": [1, 1], "o": [1, 1]}), dd.Upsert(key="k", order_by="o", tie="error"), TieRefused, "k"),
    "a spec that does not fit": (TABLE, dd.Upsert(key="key"), SpecError, "no column 'key'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_folded_is_refused(what: str) -> None:
    log, spec, kind, message = WRONG[what]
    with pytest.raises(kind, match=message):
        dd.merge_on_read(log, spec)


def test_an_error_of_whoever_gives_the_log_comes_out_as_it_is() -> None:
    def log() -> Any:
        yield TABLE
        raise LookupError("the next file is gone")

    with pytest.raises(LookupError, match="the next file is gone"):
        dd.merge_on_read(log(), SPEC)


def test_what_stale_adds_and_the_names_of_outputs_are_no_part_of_it() -> None:
    spec = dd.Upsert(key="log", order_by="count", stale="mark")
    out = dd.merge_on_read(pa.table({"log": [1, 1], "count": [2, 1], "_stale": [True, None]}), spec)
    assert out.to_pylist() == [{"log": 1, "count": 2, "_stale": True}]


def many(rows: int) -> pa.Table:
    """Events of a few versions a key, every ninth of which deletes."""
    numbers = np.arange(rows)
    text = pc.binary_join_element_wise("value", pa.array(numbers).cast(pa.string()), "x" * 60)
    return pa.table({"k": numbers * 7919 % (rows // 3), "o": numbers, "v": text, "gone": numbers % 9 == 0})


def test_a_log_larger_than_memory_is_read_as_it_goes_and_gives_the_same_in_the_same_order(tmp_path: Path) -> None:
    table = many(300_000)
    whole = dd.merge_on_read(table, SPEC, secret=SECRET)
    parts = (table.slice(i, 20_000) for i in range(0, table.num_rows, 20_000))
    with fold_log(parts, SPEC, memory="16MB", spill=tmp_path, secret=SECRET) as upsert:
        assert any(path.suffix == ".arrow" for path in tmp_path.iterdir()), "nothing was spilled"
        ends = [((n + 1) << 61) - 1 for n in range(8)]
        tables = [rows.select(whole.schema.names) for rows in upsert.output_arrangement.iterate_live_ranges(ends)]
    assert len(tables) > 1
    assert pa.concat_tables(tables).combine_chunks() == whole.combine_chunks()
    assert not any(tmp_path.iterdir())
    last = dict(zip(table.column("k").to_pylist(), range(table.num_rows), strict=True))
    gone = table.column("gone").to_pylist()
    expected = {(k, row) for k, row in last.items() if not gone[row]}
    assert set(zip(whole.column("k").to_pylist(), whole.column("o").to_pylist(), strict=True)) == expected
    assert whole.num_rows == len(expected)


def test_the_order_is_that_of_identities_under_the_secret() -> None:
    table = many(1_000)
    one, same, other = (
        dd.merge_on_read(table.take(pa.array(order)), SPEC, secret=secret).column("k").to_pylist()
        for order, secret in ((range(1_000), SECRET), (range(999, -1, -1), SECRET), (range(1_000), dd.Secret(1, 2)))
    )
    assert one == same != other
    assert sorted(one) == sorted(other)

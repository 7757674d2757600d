"""Test differences to upserts: compared with the twin, through the engine and back, and every refusal's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import effort
from doors import SECRET, EngineDoor, plain, to_arrow
from hypothesis import given, strategies as st
from model import CLOSED, to_upserts
from rules import Refused, Row, canonical
from strategies import FLAT, element, events, scenarios, shapes, splits

import ddflow as dd
from ddflow.connectors.to_arrow import to_table
from ddflow.errors import (
    CountOverflow,
    DdflowError,
    NotArrow,
    NotHeld,
    NotUnique,
    SchemaMismatch,
    SpecError,
    TimeWentBack,
)
from ddflow.operators.held_rows import BATCHES

Update = tuple[Row, int, int]
RULES = ["error", "greatest", "all"]


@st.composite
def logs(draw: st.DrawFn, nested: bool) -> tuple[dict[str, str], list[str], list[Update]]:
    """Columns, a key among them, and updates of few keys that mostly retract what is there."""
    columns = {"k": draw(st.sampled_from(FLAT))}
    for name in draw(st.sampled_from(["", "v", "v", "vw", "vwl" if nested else "vw"])):
        columns[name] = draw(st.sampled_from(["list<int64>", "struct<x>"] if name == "l" else FLAT))
    key = draw(st.sampled_from([["k"], ["k"], ["v", "k"]])) if "v" in columns else ["k"]
    columns = {name: columns[name] for name in draw(st.permutations(list(columns)))}
    rows = draw(st.lists(st.tuples(*(element(kind, True) for kind in columns.values())), min_size=1, max_size=5))
    if draw(st.booleans()):
        # All of one key: what is hidden, and what shows again, is then most of what happens.
        at = [list(columns).index(name) for name in key]
        rows = [tuple(rows[0][i] if i in at else value for i, value in enumerate(row)) for row in rows]
    live: Counter[int] = Counter()
    mostly = [1] * draw(st.sampled_from([4, 40]))
    updates: list[Update] = []
    for time in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(0, 4))):
            i = draw(st.integers(0, len(rows) - 1))
            down = live[i] > 0 and draw(st.integers(0, 2)) > 0
            diff = -1 if down else draw(st.sampled_from([*mostly, 2, -1]))
            live[i] += diff
            updates.append((tuple(rows[i]), time, diff))
    return columns, key, updates


def table_of(columns: dict[str, str], updates: Sequence[Update]) -> pa.Table:
    table = to_arrow(columns, [row for row, _, _ in updates])
    table = table.append_column("_time", pa.array([time for _, time, _ in updates], pa.int64()))
    return table.append_column("_diff", pa.array([diff for _, _, diff in updates], pa.int64()))


def canonically(table: pa.Table) -> list[Update]:
    return [(row[:-2], row[-2], row[-1]) for row in plain(table)]


def told(out: pa.Table, columns: Sequence[str], key: Sequence[str], rule: str) -> dict[tuple[Row, int], Any]:
    """A table of upserts as the twin tells them; asserts what is promised of it."""
    found: dict[tuple[Row, int], Any] = {}
    lists = []
    beside = [name for name in columns if name not in key]
    if rule == "all":
        beside = [field.name for field in out.schema.field("rows").type.value_type][:-1]
        column = out.column("rows").combine_chunks()
        each = iter(plain(pa.Table.from_batches([pa.RecordBatch.from_struct_array(column.flatten())])))
        lists = [list(islice(each, size or 0)) for size in pc.list_value_length(column).to_pylist()]
        assert [not rows for rows in lists] == out["_deleted"].to_pylist() == column.is_null().to_pylist()
        out = out.drop_columns("rows")
    named = [dict(zip(out.column_names, row, strict=True)) for row in plain(out)]
    assert [row["_time"] for row in named] == sorted(row["_time"] for row in named)
    for i, row in enumerate(named):
        at = tuple(row[name] for name in key), row["_time"]
        assert at not in found, f"two upserts of {at}"
        if rule == "all":
            wholes = [row | dict(zip([*beside, "_diff"], values, strict=True)) for values in lists[i]]
            found[at] = {tuple(whole[name] for name in columns): whole["_diff"] for whole in wholes}
            assert len(found[at]) == len(wholes), "a row twice"
        else:
            found[at] = None if row["_deleted"] else tuple(row[name] for name in columns)
            assert not row["_deleted"] or all(row[name] is None for name in beside)
    return found


def outcome(act: Callable[[], Any]) -> Any:
    """What it returns, or the names of the errors that say why not."""
    try:
        return act()
    except DdflowError as error:
        return type(error).__name__
    except Refused as refusal:
        return refusal.kinds


def agree(found: Any, expected: Any) -> bool:
    return found in expected if isinstance(expected, set) else bool(found == expected)


@effort(300)
@given(st.data(), st.sampled_from(RULES), shapes())
def test_every_rule_gives_what_the_twin_gives(data: st.DataObject, rule: Any, shape: Callable[[pa.Table], Any]) -> None:
    columns, key, updates = data.draw(logs(rule != "greatest"))
    table = table_of(columns, updates)
    shuffled = table.take(pa.array(data.draw(st.permutations(range(table.num_rows))), pa.int64()))
    # Rows are compared column by column in the order in which the columns came.
    came = [name for name in to_table(shape(shuffled), "updates", table.schema).column_names if name in columns]
    known = canonically(table.select([*came, "_time", "_diff"]))
    expected = outcome(lambda: to_upserts(came, key, known, rule))
    found = outcome(lambda: told(dd.ToUpserts(key, rule).step(shape(shuffled)), came, key, rule))
    assert agree(found, expected), (found, expected)


@effort(200)
@given(st.data(), st.sampled_from(RULES))
def test_steps_may_be_cut_between_any_two_times(data: st.DataObject, rule: Any) -> None:
    columns, key, updates = data.draw(logs(rule != "greatest"))
    steps = data.draw(splits(sorted({time for _, time, _ in updates})))
    parts = [table_of(columns, [u for u in updates if u[1] in times]) for times in steps]
    whole = outcome(lambda: dd.to_upserts(table_of(columns, updates), key, rule))
    back = dd.ToUpserts(key, rule, secret=SECRET)

    def stepped() -> pa.Table:
        out = []
        for part in parts:
            out.append(back.step(part))
            back.held_rows._check_invariants()
        return pa.concat_tables(out)

    found = outcome(stepped) if parts else whole
    if isinstance(whole, pa.Table):
        # Lists too: their order does not depend on how the updates were cut.
        assert found.schema == whole.schema and plain(found) == plain(whole)
        held = Counter(row for row, _, _ in canonically(table_of(columns, [])))
        for row, _, diff in canonically(table_of(columns, updates)):
            held[row] += diff
        assert len(back) == sum(n != 0 for n in held.values()) or not parts
    else:
        assert found in ("NotUnique", "NotHeld") and whole in ("NotUnique", "NotHeld")


class Recording(EngineDoor):
    """An engine that remembers the tables it gave."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        super().__init__(scenario)
        self.tables: list[pa.Table] = []

    def _checked(self, name: str, table: pa.Table) -> Any:
        self.tables.append(table)
        return super()._checked(name, table)


def stamps_of(table: pa.Table) -> pa.ChunkedArray:
    column = table.column("_time")
    return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).cast(pa.int64())


@effort(60)
@given(st.data(), st.booleans())
def test_there_and_back_is_the_identity_both_ways(data: st.DataObject, holds_back: bool) -> None:
    scenario = data.draw(scenarios(holds_back=holds_back, lateness=None, stale="drop"))
    input = scenario["inputs"]["a"]
    door = Recording({"inputs": {"a": input}, "outputs": {"out": ["input", "a"]}})
    for time, rows in enumerate(data.draw(splits(data.draw(events(input, most=14))))):
        with suppress(Refused):
            door.push({"a": rows}) if holds_back else door.step({"a": rows}, time)
            if holds_back:
                door.advance_to(time)
    with suppress(Refused):
        door.advance_to(CLOSED)
    key = input["spec"]["key"]
    back, again, balance = dd.ToUpserts(key), dd.ToUpserts(key), Counter[Any]()
    flow = dd.Flow()
    columns = pa.schema([*door.inputs["a"].schema, ("_deleted", pa.bool_())])
    spec = dd.Upsert(key, delete=dd.tombstone("_deleted"), null_key="keep")
    flow.output("out", flow.upserts("a", pa.schema([field.with_nullable(True) for field in columns]), spec))
    with flow.open() as engine:
        for table in door.tables:
            upserts = back.step(table)
            balance.update({(row, time): diff for row, time, diff in canonically(table)})
            for time in sorted(set(stamps_of(upserts).to_pylist())):
                these = upserts.filter(pc.equal(stamps_of(upserts), time)).drop_columns("_time")
                updates = engine.step({"a": these}, time)["out"]
                balance.subtract({(row, at): diff for row, at, diff in canonically(updates)})
                mirrored = again.step(updates).drop_columns("_time")
                assert mirrored.num_rows == these.num_rows and Counter(plain(mirrored)) == Counter(plain(these))
    assert not any(balance.values()), "updates to upserts to updates"


def updates(*rows: tuple[Any, ...], names: Sequence[str] = ("k", "v"), kind: pa.DataType | None = None) -> pa.Table:
    """Updates by hand: columns, time, diff."""
    columns = list(zip(*rows, strict=True))
    table = pa.table({name: list(column) for name, column in zip([*names, "_time", "_diff"], columns, strict=True)})
    return table if kind is None else table.set_column(len(names), "_time", table["_time"].cast(kind))


def test_rows_of_many_steps_are_gathered_into_a_few_batches() -> None:
    back, most = dd.ToUpserts("k"), 0
    back.step(updates(*((k, "first", 0, 1) for k in range(7))))
    was = dict.fromkeys(range(7), "first")
    for time in range(1, 3 * BATCHES):
        key, now = time % 7, str(time)
        back.step(updates((key, was[key], time, -1), (key, now, time, 1)))
        was[key], most = now, max(most, len(back.held_rows.pool.rows))
    assert BATCHES <= most <= BATCHES + 2
    assert len(back.held_rows.pool.rows) < BATCHES


@pytest.mark.kernels
def test_a_hidden_row_shows_again_when_the_one_above_it_goes_even_steps_later() -> None:
    back = dd.ToUpserts("k", "greatest")
    assert back.step(updates((1, "a", 0, 1), (1, "c", 0, 1), (1, "b", 0, 2))).to_pylist() == [
        {"k": 1, "v": "c", "_time": 0, "_deleted": False}
    ]
    assert back.step(updates((1, "b", 1, -1), (1, "a", 1, 1))).num_rows == 0, "what is hidden changes nothing"
    assert back.step(updates((1, "c", 2, -1))).to_pylist() == [{"k": 1, "v": "b", "_time": 2, "_deleted": False}]
    assert back.step(updates((1, "b", 3, -1))).to_pylist() == [{"k": 1, "v": "a", "_time": 3, "_deleted": False}]
    assert back.step(updates((1, "a", 4, -1))).num_rows == 0 and len(back) == 1, "it is there once more"
    assert back.step(updates((1, "a", 5, -1))).to_pylist() == [{"k": 1, "v": None, "_time": 5, "_deleted": True}]
    assert len(back) == 0


@pytest.mark.kernels
def test_greatest_is_column_by_column_with_null_smallest_and_nan_largest() -> None:
    for smaller, greater in [(None, -5.0), (1.0, float("nan")), (None, float("nan")), (0.0, 1.0)]:
        for order in ([smaller, greater], [greater, smaller]):
            table = pa.table(
                {"k": [1, 1], "v": pa.array(order, pa.float64()), "w": [9, 1], "_time": [0, 0], "_diff": [1, 1]}
            )
            shown = dd.to_upserts(table, "k", "greatest")["v"].to_pylist()
            assert canonical(shown[0]) is canonical(greater) or shown == [greater]


@pytest.mark.kernels
def test_all_lists_every_row_of_the_key_with_how_often_it_is_there() -> None:
    table = updates((1, "b", 0, 1), (1, "a", 0, 3), (2, "x", 0, 1), (1, "b", 1, -1), (2, "x", 1, -1), (1, "a", 2, -3))
    out = dd.to_upserts(table, "k", "all")
    assert out.schema.field("rows").type.value_type == pa.struct(
        [("v", pa.string()), pa.field("_diff", pa.int64(), False)]
    )
    assert out.to_pylist() == [
        {"k": 1, "rows": [{"v": "a", "_diff": 3}, {"v": "b", "_diff": 1}], "_time": 0, "_deleted": False},
        {"k": 2, "rows": [{"v": "x", "_diff": 1}], "_time": 0, "_deleted": False},
        {"k": 1, "rows": [{"v": "a", "_diff": 3}], "_time": 1, "_deleted": False},
        {"k": 2, "rows": None, "_time": 1, "_deleted": True},
        {"k": 1, "rows": None, "_time": 2, "_deleted": True},
    ]


def test_rows_without_an_order_are_listed_in_one_that_is_always_the_same() -> None:
    rows = [(1, [i], 0, 1) for i in range(20)]
    lists = [dd.to_upserts(updates(*some), "k", "all")["rows"] for some in (rows, rows, rows[::-1])]
    assert lists[0] == lists[1] == lists[2]


def test_times_keep_their_type() -> None:
    for kind in (pa.timestamp("us"), pa.date32(), pa.timestamp("ms", "UTC")):
        out = dd.to_upserts(updates((1, "a", datetime(2020, 1, 2), 1), kind=kind), "k")
        assert out.schema.field("_time").type == kind and out["_time"][0].as_py().year == 2020


WRONG: dict[str, tuple[Any, Any, Any, type[DdflowError], str]] = {
    "two rows": (
        updates((7, "a", 3, 1), (7, "b", 3, 1)),
        "k",
        "error",
        NotUnique,
        r"\['k'\] at time 3: one key holds .*'a'.*1 times.*'b'.*on_conflict='greatest'",
    ),
    "one row twice": (updates((7, "a", 3, 2)), "k", "error", NotUnique, r"'v': 'a'\} \(2 times\)"),
    "the earliest time": (
        updates((7, "a", 3, 1), (8, "a", 3, 1), (7, "b", 9, 1), (8, "b", 4, 1)),
        "k",
        "error",
        NotUnique,
        "at time 4: one key holds .*'k': 8",
    ),
    "not there": (updates((7, "a", 3, 1), (7, "b", 4, -1)), "k", "greatest", NotHeld, r"time 4: .*'v': 'b'.*retracted"),
    "too often": (
        updates((7, "a", 3, 1), (7, "a", 4, -2)),
        "k",
        "all",
        NotHeld,
        "'v': 'a'.*more often than the",
    ),
    "a moment": (updates((7, "a", datetime(2020, 1, 2), 2), kind=pa.timestamp("us")), "k", "error", NotUnique, "2020"),
    "a sum": (updates((7, "a", 3, 2**63 - 1), (7, "a", 4, 1)), "k", "greatest", CountOverflow, "overflows int64"),
    "no key": (updates((7, "a", 3, 1)), "q", "error", SchemaMismatch, "no column 'q'.*the columns are"),
    "no diff": (pa.table({"k": [1], "_time": [1]}), "k", "error", SchemaMismatch, "no column '_diff'"),
    "no time": (pa.table({"k": [1], "_diff": [1]}), "k", "error", SchemaMismatch, "no column '_time'"),
    "time as key": (updates((7, "a", 3, 1)), "_time", "error", SchemaMismatch, "'_time'"),
    "a null time": (updates((7, "a", None, 1), kind=pa.int64()), "k", "error", SchemaMismatch, "_time.*nulls"),
    "text as time": (updates((7, "a", "x", 1)), "k", "error", SchemaMismatch, "not a time type"),
    "a column twice": (
        updates((7, "a", 3, 1), names=("k", "v")).rename_columns(["k", "k", "_time", "_diff"]),
        "k",
        "error",
        SpecError,
        "more than once",
    ),
    "a name that is taken": (updates((7, "a", 3, 1), names=("k", "_deleted")), "k", "error", SchemaMismatch, "rename"),
    "rows as key": (updates((7, "a", 3, 1), names=("rows", "v")), "rows", "all", SchemaMismatch, "rename"),
    "no order": (updates((7, [1], 3, 1)), "k", "greatest", SpecError, "'v' is list.*no order.*'all'"),
    "a nested key": (updates((7, [1], 3, 1)), "v", "error", SpecError, "cannot be hashed"),
    "a rule": (updates((7, "a", 3, 1)), "k", "gratest", SpecError, "did you mean 'greatest'"),
    "an empty key": (updates((7, "a", 3, 1)), [], "error", SpecError, "at least one column"),
    "steps that meet": ([updates((7, "a", 3, 1)), updates((7, "b", 3, 1))], "k", "error", TimeWentBack, "up to 3"),
    "other columns": (
        [updates((7, "a", 3, 1)), updates((7, "b", 4, 1), names=("k", "w"))],
        "k",
        "error",
        SchemaMismatch,
        "column 'v' is missing",
    ),
    "a number": (5, "k", "error", NotArrow, "int does not speak Arrow"),
    "nothing": ([], "k", "error", NotArrow, "there is no table"),
}


@pytest.mark.kernels
@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_turned_back_is_refused(what: str) -> None:
    diffs, key, rule, kind, message = WRONG[what]
    with pytest.raises(kind, match=message):
        dd.to_upserts(diffs, key, rule)


@pytest.mark.kernels
def test_a_refused_step_changes_nothing() -> None:
    back = dd.ToUpserts("k")
    back.step(updates((1, "a", 0, 1)))
    for bad in (updates((2, "x", 1, 1), (1, "b", 2, 1)), updates((2, "x", 1, 1), (3, "b", 2, -1))):
        with pytest.raises((NotUnique, NotHeld)):
            back.step(bad)
        back.held_rows._check_invariants()
    assert len(back) == 1
    assert back.step(updates((1, "a", 1, -1), (1, "b", 1, 1))).num_rows == 1


def test_no_updates_give_no_upserts_with_all_columns() -> None:
    out = dd.to_upserts(updates((1, "a", 0, 1)).slice(0, 0), "k")
    assert not out.num_rows and out.column_names == ["k", "v", "_time", "_deleted"]


@pytest.mark.parametrize("rule", RULES)
def test_a_hot_key_and_rows_that_come_and_go_cost_no_more_than_their_number(rule: Any) -> None:
    """One key with all updates, each value leaving when the next one comes: quadratic work would take minutes."""
    n = 60_000
    value = np.repeat(np.arange(n), 2)[:-1]
    table = pa.table(
        {
            "k": np.zeros(value.size, np.int64),
            "v": value,
            "_time": (np.arange(value.size) + 1) // 2,
            "_diff": np.where(np.arange(value.size) % 2 == 0, 1, -1),
        }
    )
    dd.to_upserts(table.slice(0, 9), "k", rule)  # so that no kernel is compiled in what follows
    begun = process_time()
    assert dd.to_upserts(table, "k", rule)["_deleted"].to_pylist() == [False] * n
    assert process_time() - begun < 10


def test_what_is_held_is_gathered_when_most_of_it_went() -> None:
    back, n = dd.ToUpserts("k", secret=SECRET), 3000
    keys = np.arange(n)
    back.step(pa.table({"k": keys, "v": keys, "_time": np.zeros(n, int), "_diff": np.ones(n, int)}))
    for time in range(1, 40):
        two = np.concatenate([keys, keys])
        both = pa.table(
            {
                "k": two,
                "v": np.concatenate([keys + time - 1, keys + time]),
                "_time": np.full(2 * n, time),
                "_diff": np.repeat([-1, 1], n),
            }
        )
        assert back.step(both).num_rows == n
        back.held_rows._check_invariants()
        assert back.held_rows.stored <= 2 * n + 4096 + n
    assert len(back) == n

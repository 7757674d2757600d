"""Test that folds equal a plain fold over Python lists, for each strategy, type and walk; errors name the key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Context, Decimal
from typing import Any

import kinds
import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises

from ddflow.columns.hashing import Secret
from ddflow.errors import ListTooLong, MergeOverflow, TooLarge
from ddflow.kernels.fold import BLANK, CLEAR, NOTHING, SKIP, TAKE, EventsByKey
from ddflow.operators.upsert import folds
from ddflow.operators.upsert.folds import RULES, PriorCells, compute_rank_words, fold_cells
from ddflow.plan.merge.strategy import (
    MAKERS,
    Strategy,
    append,
    collect,
    fields,
    first,
    join_text,
    last,
    last_non_null,
    max,
    sum,
    union,
)

SECRET = Secret(1, 2)
FLAGS = np.uint8
EVERY = np.empty(0, FLAGS)
WIDE = Context(prec=100)


@dataclass(frozen=True)
class Walk:
    """Keys of (key, time) groups of events: (row, action); how many rows there are; what each key holds, a place in the
    pool."""

    keys: list[list[list[tuple[int, int]]]]
    rows: int
    held: list[int | None]

    @property
    def walked(self) -> EventsByKey:
        key_times = [key_time for key in self.keys for key_time in key]
        places = [row for key_time in key_times for row, _ in key_time]
        bounds = [np.cumsum([0, *map(len, of)]).astype(np.int32) for of in (key_times, self.keys)]
        return EventsByKey(np.array(places, np.int32), *bounds)

    @property
    def action(self) -> np.ndarray:
        return np.array([what for key in self.keys for key_time in key for _, what in key_time], FLAGS)


@st.composite
def walks(draw: st.DrawFn, pool: int, blanks: bool = True) -> Walk:
    """Of cells from a pool of some size."""
    sizes = draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=4))
    n = int(np.sum([np.sum(key) for key in sizes]))
    rows = iter(draw(st.permutations(range(n + 2)))[:n])
    what = st.sampled_from([TAKE, TAKE, TAKE, SKIP, CLEAR, *[BLANK] * blanks])
    keys = [[[(next(rows), draw(what)) for _ in range(size)] for size in key] for key in sizes]
    return Walk(keys, n + 2, [draw(st.one_of(st.none(), st.integers(0, pool - 1))) for _ in sizes])


def oracle(walk: Walk, cells: list[Any], held: list[Any], step: Callable[[bool, Any, Any, int], Any]) -> list[Any]:
    """The cell after each of its times.  ``step``: there, the cell so far, the event's and its row -> the new one."""
    out = []
    for key, place, cell in zip(walk.keys, walk.held, held, strict=True):
        there = place is not None
        for key_time in key:
            for row, action in key_time:
                if action == TAKE:
                    cell, there = step(there, cell, cells[row], row), True
                elif action != SKIP:
                    cell, there = None, action == BLANK
            out.append(cell)
    return out


def rank(value: Any) -> Any:
    return (value != value, value) if isinstance(value, float | np.floating) else value


class Refused(Exception):
    """The oracle's sum left its type, or its list its limit."""


def plain_sum(kind: pa.DataType, a: Any, b: Any) -> Any:
    """a + b in a type."""
    if pat.is_floating(kind):
        with np.errstate(over="ignore", invalid="ignore"):
            dtype = np.float32 if kind == pa.float32() else np.float64
            return float(dtype(a) + dtype(b))
    if pat.is_decimal(kind):
        total = unscaled(a, kind) + unscaled(b, kind)
        if abs(total) >= 10**kind.precision:
            raise Refused
        return Decimal(total).scaleb(-kind.scale, WIDE)
    low, high = (0, 2**kind.bit_width) if pat.is_unsigned_integer(kind) else (-(2 ** (kind.bit_width - 1)),) * 2
    if not low <= a + b < (high if low == 0 else -low):
        raise Refused
    return a + b


def unscaled(value: Decimal, kind: pa.DataType) -> int:
    return int(value.scaleb(kind.scale, WIDE))


def same(value: Any) -> Any:
    """What is equal of elements of lists: one NaN, one zero."""
    if isinstance(value, float | np.floating):
        return "nan" if value != value else float(value) + 0.0
    if isinstance(value, list | tuple):
        return tuple(map(same, value))
    return tuple((k, same(v)) for k, v in value.items()) if isinstance(value, dict) else value


def exact(value: Any) -> Any:
    """What is equal to the bit."""
    if isinstance(value, float | np.floating):
        return repr(float(value))
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return {k: exact(v) for k, v in value.items()} if isinstance(value, dict) else value


def plain(strategy: Strategy, kind: pa.DataType, there: bool, old: Any, new: Any, had: bool = True) -> Any:
    """One step of a fold; ``kind``: of the cell."""
    name = strategy.name
    if name == "last":
        return new if had else old
    if name == "first":
        return old if there else new
    if new is None or (name == "first_non_null" and old is not None):
        return old
    if name == "fields":
        named = dict(strategy.parts or ())
        return {
            f.name: plain(
                named.get(f.name, strategy.default or last_non_null()),
                f.type,
                old is not None,
                (old or {}).get(f.name),
                new[f.name],
            )
            for f in kind
        }
    if name == "union":
        out: dict[Any, Any] = {}
        for each in [*(old or []), *new]:
            out.setdefault(same(each), each)
        return within(strategy, list(out.values()))
    if name in ("append", "collect"):
        return within(strategy, [*(old or []), *(new if name == "append" else [new])])
    if old is None or name in ("last_non_null", "first_non_null"):
        return new
    if name in ("max", "bool_or"):
        return new if rank(new) > rank(old) else old
    if name in ("min", "bool_and"):
        return new if rank(new) < rank(old) else old
    return plain_sum(kind, old, new) if name == "sum" else old + strategy.separator + new


def within(strategy: Strategy, values: list[Any]) -> list[Any]:
    if strategy.limit is not None and len(values) > strategy.limit:
        raise Refused
    return values


def column_of(pool: pa.Array, places: list[int | None]) -> pa.Array:
    """PriorCells of a pool, in an array that does not begin at its first place."""
    places = [0, *(len(pool) if p is None else p for p in places)]
    return pa.concat_arrays([pool, pa.nulls(1, pool.type)]).take(pa.array(places)).slice(1)


def values(array: pa.Array) -> list[Any]:
    return (array.view(pa.int64()) if pat.is_duration(array.type) else array).to_pylist()


def references(walk: Walk) -> np.ndarray:
    """Held rows are those of batch 3."""
    return np.array([NOTHING if h is None else 3 << 40 | g for g, h in enumerate(walk.held)], np.int64)


@given(st.data(), st.sampled_from(sorted(RULES)))
@effort(400)
def test_a_choice_names_the_cell(data: st.DataObject, name: str) -> None:
    strategy = MAKERS[name]()
    fit = [key for key, pool in kinds.PLAIN.items() if strategy.supports_type(pool.type)]
    pool = kinds.PLAIN[data.draw(st.sampled_from(fit))]
    walk = data.draw(walks(len(pool)))
    places = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=walk.rows, max_size=walk.rows))
    had = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=walk.rows, max_size=walk.rows)))
    gone = [not valid for valid in pool.is_valid().to_pylist()]
    known = pool.to_pylist() if name in ("max", "min", "bool_or", "bool_and") else list(range(len(pool)))

    def step(there: bool, old: Any, new: Any, row: int) -> Any:
        a, b = (None if i is None or gone[i] else known[i] for i in (old, new))
        if name not in ("last", "first") and a is not None and b is not None and rank(a) == rank(b):
            return old
        if name == "last":
            return new if had is None or had[row] else old
        if name == "first":
            return old if there else new
        return (new if plain(strategy, pool.type, there, a, b) is b else old) if b is not None else old

    held, column = column_of(pool, walk.held), column_of(pool, places)
    given = EVERY if had is None else np.array(had, FLAGS)
    out = fold_cells(
        strategy,
        pa.field("c", pool.type),
        walk.walked,
        walk.action,
        column,
        given,
        PriorCells(references(walk), lambda: held),
        SECRET,
        str,
    )
    assert isinstance(out, np.ndarray) and out.dtype == np.int64
    shown = [None if r == NOTHING else places[r] if r < 1 << 40 else walk.held[r & 0xFFFF] for r in out.tolist()]
    expected = oracle(walk, places, walk.held, step)
    assert [None if i is None or gone[i] else i for i in shown] == [
        None if i is None or gone[i] else i for i in expected
    ]


SUMS = {
    **{
        name: kinds.FLAT[name]
        for name in (
            "int8",
            "uint8",
            "int32",
            "int64",
            "uint64",
            "float32",
            "float64",
            "duration",
            "decimal32",
            "decimal64",
            "decimal128",
        )
    },
    "small": pa.array([1, 2, None, -3, 40], pa.int8()),
    "thirds": pa.array([0.1, 1e16, -1e16, 0.3, None, -0.0]),
    "short thirds": pa.array([0.1, 16777216.0, None, 1.0, -0.0], pa.float32()),
    "short decimal": pa.array([Decimal("1.5"), None, Decimal("-9.0"), Decimal("6.0")], pa.decimal128(3, 1)),
    "long decimal": pa.array([Decimal("1.5"), None, Decimal(-(2**64)), Decimal(2**63)], pa.decimal128(25, 1)),
    "long duration": pa.array([2**62, None, -(2**62), 1], pa.int64()).view(pa.duration("ns")),
}
LISTS = {
    **{name: pool for name, pool in kinds.NESTED.items() if append().supports_type(pool.type)},
    "large": pa.array([[1, 2, 1], None, [], [None, None, 3]], pa.large_list(pa.int8())),
    "long": pa.array([list(range(30)), list(range(20, 60)), [5] * 40, None, [1]], pa.list_(pa.int64())),
    "not null": pa.array([[1], None, [2, 3]], pa.list_(pa.field("item", pa.int64(), nullable=False))),
}
TEXTS = {"text": pa.array(["a", None, "", "ß", "b,"]), "large": pa.array(["a", None, ""], pa.large_string())}
STRUCT = pa.array(
    [
        {"n": 1, "l": [1], "s": "x", "d": {"v": 2}},
        None,
        {"n": None, "l": None, "s": None, "d": None},
        {"n": 3, "l": [1, None], "s": "", "d": {"v": None}},
        {"n": -100, "l": [], "s": "y", "d": {"v": 0}},
    ],
    pa.struct({"n": pa.int8(), "l": pa.list_(pa.int64()), "s": pa.string(), "d": pa.struct({"v": pa.int64()})}),
)
INNER = fields({"v": max()})
SEVERAL = st.fixed_dictionaries(
    {
        "n": st.sampled_from([MAKERS[each]() for each in ("last", "first", "first_non_null", "max", "min", "sum")]),
        "l": st.sampled_from([append(), union(), first(), last()]),
        "s": st.sampled_from([join_text("-"), last(), first()]),
        "d": st.sampled_from([INNER, fields({}, default=first()), last_non_null(), last()]),
    }
)
SUMMED = st.tuples(st.just(sum()), st.sampled_from(list(SUMS.values())))
CASES = st.one_of(
    st.tuples(st.sampled_from([append(), union(), append(5), union(3)]), st.sampled_from(list(LISTS.values()))),
    st.tuples(
        st.sampled_from([collect(), collect(3)]),
        st.sampled_from([pool for pool in kinds.PLAIN.values() if collect().supports_type(pool.type)]),
    ),
    st.tuples(st.sampled_from([join_text(), join_text(""), join_text(" ß ")]), st.sampled_from(list(TEXTS.values()))),
    st.tuples(SEVERAL.map(fields), st.just(STRUCT)),
    st.tuples(st.sampled_from([fields({}), fields({}, default=last())]), st.just(kinds.NESTED["struct of none"])),
)


@given(st.data(), SUMMED)
@effort(400)
def test_sums_are_those_of_a_plain_fold(data: st.DataObject, case: tuple[Strategy, pa.Array]) -> None:
    agree(data, *case)


@given(st.data(), CASES)
@effort(500)
def test_lists_texts_and_structs_are_those_of_a_plain_fold(
    data: st.DataObject, case: tuple[Strategy, pa.Array]
) -> None:
    agree(data, *case)


def agree(data: st.DataObject, strategy: Strategy, pool: pa.Array) -> None:
    walk = data.draw(walks(len(pool)))
    places = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=walk.rows, max_size=walk.rows))
    column, kind = column_of(pool, places), pool.type
    held, cells = column_of(pool, walk.held), values(column) if strategy.name == "sum" else column.to_pylist()
    before = values(held)
    if strategy.name == "collect":
        kind = pa.list_(pool.type)
        lifted = pa.LargeListArray if data.draw(st.booleans()) else pa.ListArray
        some = [None if h is None else h % 3 for h in walk.held]
        ends = pa.array(
            np.cumsum([0, *(s or 0 for s in some)]), pa.int64() if lifted is pa.LargeListArray else pa.int32()
        )
        children = [i for i, valid in enumerate(pool.is_valid().to_pylist()) if valid] or [0]
        flat = [children[i % len(children)] for i in range(ends[-1].as_py())]
        held = lifted.from_arrays(ends, pool.take(pa.array(flat, pa.int64())), mask=pa.array([s is None for s in some]))
        kind, before = held.type, held.to_pylist()
    if strategy.name == "union":
        # What is held has been merged before.
        before = [None if v is None else plain(union(), kind, True, None, v) for v in before]
        held = pa.array(before, kind)

    def run() -> pa.Array:
        return fold_cells(
            strategy,
            pa.field("c", kind),
            walk.walked,
            walk.action,
            column,
            EVERY,
            PriorCells(references(walk), lambda: held),
            SECRET,
            lambda group: f"<{group}>",
        )

    try:
        expected = oracle(walk, cells, before, lambda there, old, new, _: plain(strategy, column.type, there, old, new))
    except Refused:
        with pytest.raises((MergeOverflow, ListTooLong)):
            run()
        return
    out = run()
    out.validate(full=True)
    assert out.type == kind
    assert exact(values(out)) == exact(expected)


def one(*actions: int, keys: int = 1) -> tuple[EventsByKey, np.ndarray]:
    """Events of one key at one time; ``keys``: the same number of events for each of several."""
    n = len(actions)
    bounds = np.linspace(0, n, keys + 1).astype(np.int32)
    return EventsByKey(np.arange(n, dtype=np.int32), bounds, np.arange(keys + 1, dtype=np.int32)), np.array(
        actions, FLAGS
    )


def of_nothing(g: int = 1) -> PriorCells:
    def gather() -> pa.Array:
        raise AssertionError("nothing is held")

    return PriorCells(np.full(g, NOTHING, np.int64), gather)


def refusal(
    strategy: Strategy, column: pa.Array, held: Any, keys: int = 1, error: type[Exception] = MergeOverflow
) -> str:
    before = pa.array(held, column.type)
    cells = PriorCells(np.arange(keys, dtype=np.int64), lambda: before)
    with pytest.raises(error) as caught:
        fold_cells(
            strategy,
            pa.field("visits", column.type),
            *one(*[TAKE] * len(column), keys=keys),
            column,
            EVERY,
            cells,
            SECRET,
            lambda group: str({"id": group + 3}),
        )
    return str(caught.value).split("; ")[0]


def test_a_sum_that_leaves_its_type_is_named() -> None:
    assert refusal(sum(), pa.array([9], pa.int8()), [120]) == "a sum of 'visits': key {'id': 3}: 120 + 9 overflows int8"
    most = 2**64 - 1
    told = refusal(sum(), pa.array([0, 1, most, 0], pa.uint64()), [0, 1], 2)
    assert told == f"a sum of 'visits': key {{'id': 4}}: 1 + {most} overflows uint64"
    money = pa.array([Decimal("0.01")], pa.decimal128(5, 2))
    assert "999.99 + 0.01 overflows decimal128(5, 2)" in refusal(sum(), money, [Decimal("999.99")])
    least = Decimal(1 - 10**38)
    assert f"{least} + -1 overflows" in refusal(sum(), pa.array([Decimal(-1)], pa.decimal128(38, 0)), [least])
    assert f"{least} + {least} overflows" in refusal(sum(), pa.array([least], pa.decimal128(38, 0)), [least])


def test_a_sum_that_comes_back_into_bounds_is_refused_and_one_that_is_cleared_too() -> None:
    assert "127 + 1" in refusal(sum(), pa.array([1, -1], pa.int8()), [127])
    column = pa.array([100, 100, None], pa.int8())
    with pytest.raises(MergeOverflow):
        fold_cells(sum(), pa.field("n", pa.int8()), *one(TAKE, TAKE, CLEAR), column, EVERY, of_nothing(), SECRET, str)


def test_an_overflow_inside_a_struct_names_the_field() -> None:
    column = pa.array([{"n": 100}, {"n": 100}], pa.struct([("n", pa.int8())]))
    with raises(MergeOverflow):
        fold_cells(
            fields({"n": sum()}), pa.field("c", column.type), *one(TAKE, TAKE), column, EVERY, of_nothing(), SECRET, str
        )


def test_a_list_that_outgrows_its_limit_is_named() -> None:
    given = pa.array([[4], [5, 6]])
    told = refusal(append(4), given, [[1, 2]], error=ListTooLong)
    assert told == "dd.append(limit=4) of 'visits': key {'id': 3}: 3 elements and 2 more, but the limit is 4"
    assert "2 elements and 1 more, but the limit is 1" in refusal(append(1), given, [[1, 2]], error=ListTooLong)
    assert "0 elements and 2 more" in refusal(union(1), given, [None, None], 2, error=ListTooLong)


def test_a_list_that_was_held_too_long_stays_until_it_grows() -> None:
    held = pa.array([[1, 2, 3]])
    cells = PriorCells(np.zeros(1, np.int64), lambda: held)
    column = pa.array([None], held.type)
    out = fold_cells(append(2), pa.field("l", held.type), *one(TAKE), column, EVERY, cells, SECRET, str)
    assert out.to_pylist() == [[1, 2, 3]]


def test_a_list_that_is_too_long_is_refused_though_it_is_cleared() -> None:
    column = pa.array([[1], [2], None], pa.list_(pa.int64()))
    with pytest.raises(ListTooLong):
        fold_cells(
            union(1), pa.field("l", column.type), *one(TAKE, TAKE, CLEAR), column, EVERY, of_nothing(), SECRET, str
        )


def test_long_lists_are_not_quadratic() -> None:
    n = 300_000
    column = pa.ListArray.from_arrays(pa.array(np.arange(0, n + 1, 3), pa.int32()), pa.array(np.arange(n) % (n // 2)))
    action = [TAKE] * len(column)
    out = fold_cells(union(), pa.field("l", column.type), *one(*action), column, EVERY, of_nothing(), SECRET, str)
    assert out.to_pylist() == [list(range(n // 2))]
    out = fold_cells(append(), pa.field("l", column.type), *one(*action), column, EVERY, of_nothing(), SECRET, str)
    assert out.to_pylist() == [column.values.to_pylist()]


def test_what_passes_two_gibibytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "MOST", 5)
    walk, texts = one(TAKE, TAKE), pa.array(["abc", "de"])
    with raises(TooLarge):
        fold_cells(join_text(), pa.field("c", pa.string()), *walk, texts, EVERY, of_nothing(), SECRET, str)
    wide = fold_cells(
        join_text(),
        pa.field("c", pa.large_string()),
        *walk,
        texts.cast(pa.large_string()),
        EVERY,
        of_nothing(),
        SECRET,
        str,
    )
    assert wide.to_pylist() == ["abc,de"]
    lists = pa.array([[1, 2, 3], [4, 5, 6]])
    with raises(TooLarge):
        fold_cells(append(), pa.field("c", lists.type), *walk, lists, EVERY, of_nothing(), SECRET, str)


def test_a_first_event_that_was_blank_stays_null_and_a_cleared_one_does_not() -> None:
    column = pa.array([1, 2])
    for action, shown in ((BLANK, NOTHING), (CLEAR, 1)):
        out = fold_cells(
            first(), pa.field("c", column.type), *one(action, TAKE), column, EVERY, of_nothing(), SECRET, str
        )
        assert out.tolist() == [shown]


def test_held_values_are_gathered_once_and_only_where_they_matter() -> None:
    asked: list[int] = []

    def gather() -> pa.Array:
        asked.append(1)
        return pa.array([5])

    held, column = PriorCells(np.zeros(1, np.int64), gather), pa.array([7])
    for strategy in (last(), last_non_null(), first()):
        fold_cells(strategy, pa.field("c", column.type), *one(TAKE), column, EVERY, held, SECRET, str)
    assert asked == []
    for strategy in (max(), sum()):
        fold_cells(strategy, pa.field("c", column.type), *one(TAKE), column, EVERY, held, SECRET, str)
    assert asked == [1]


@given(st.data(), st.sampled_from(list(kinds.FLAT)))
@effort(150)
def test_ranks_are_ordered_as_values_are(data: st.DataObject, name: str) -> None:
    pool = kinds.FLAT[name]
    places = st.lists(st.integers(0, len(pool) - 1), max_size=6)
    column, held = (column_of(pool, data.draw(places)) for _ in range(2))
    words, before = compute_rank_words(column, held)
    assert (words.dtype, before.dtype, words.size, before.size) == (np.int64, np.int64, len(column), len(held))
    both = list(zip(column.to_pylist() + held.to_pylist(), [*words.tolist(), *before.tolist()], strict=True))
    known = [(rank(value), word) for value, word in both if value is not None]
    for a, i in known:
        for b, j in known:
            nans = isinstance(a, tuple) and a[0] and isinstance(b, tuple) and b[0]
            less = not nans and a < b and (not isinstance(a, tuple) or a[0] < b[0] or a[1] < b[1])
            equal = nans or a == b
            assert (less, equal) == (i < j, i == j)


def test_durations_are_summed_in_their_unit() -> None:
    column = pa.array([timedelta(seconds=1), timedelta(seconds=2)], pa.duration("ms"))
    out = fold_cells(sum(), pa.field("c", column.type), *one(TAKE, TAKE), column, EVERY, of_nothing(), SECRET, str)
    assert out.to_pylist() == [timedelta(seconds=3)]


def test_decimals_of_either_sign_are_summed_in_every_width() -> None:
    for kind in (pa.decimal32(5, 1), pa.decimal64(18, 1), pa.decimal128(5, 1), pa.decimal128(30, 1)):
        column = pa.array([Decimal("1.5"), Decimal("-4.0")], kind)
        out = fold_cells(sum(), pa.field("c", kind), *one(TAKE, TAKE), column, EVERY, of_nothing(), SECRET, str)
        assert out.to_pylist() == [Decimal("-2.5")]

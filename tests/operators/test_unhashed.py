"""Test that values computed from their hashes equal gathered values, for all columns and key layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.operators.upsert import resolution, small_steps
from ddflow.operators.upsert.resolution import Resolved

UNHASHED = [pa.int64(), pa.uint64(), pa.timestamp("us"), pa.date64(), pa.duration("ns"), pa.time64("us")]
GATHERED = [pa.int32(), pa.float64(), pa.string(), pa.bool_(), pa.decimal128(19)]
KEYS = [[pa.int64()], [pa.uint64()], [pa.timestamp("us")], [pa.float64()], [pa.string()], [pa.int32(), pa.int64()]]
DAY, EDGES = 86_400_000, np.array([0, -1, 1, 2**63 - 1, -(2**63), 2**62], np.int64)


def column(kind: pa.DataType, numbers: Any, gone: Any = None) -> pa.Array:
    """Numbers as values of a type, null where ``gone``."""
    if pa.types.is_boolean(kind):
        return pa.array(numbers % 2 == 0, mask=gone)
    if pa.types.is_date64(kind) or pa.types.is_time(kind):
        scale = DAY if pa.types.is_date64(kind) else 1
        return pa.array((numbers % 1000) * scale, pa.int64(), mask=gone).view(kind)
    if pa.types.is_timestamp(kind):
        numbers = np.where(np.abs(numbers) > 2**40, numbers // 64, numbers)  # within the calendar
    if kind == pa.uint64() or pa.types.is_temporal(kind):
        return pa.array(numbers, pa.int64(), mask=gone).view(kind)
    small = numbers if kind in (pa.int64(), pa.string()) else numbers % 1000
    return pa.array(small, pa.int64(), mask=gone).cast(kind)


def events(kinds: list[pa.DataType], value: pa.DataType, n: int, begin: int, gone: Any) -> pa.Table:
    """n events of 40 keys from time ``begin`` on, three a time; of nulls in ``val`` those that ``gone`` says."""
    chance = np.random.default_rng(begin)
    numbers = chance.integers(0, 5, n) + chance.choice(EDGES, n) // 8
    keys = {f"k{i}": column(kind, chance.integers(0, 40, n) // (i + 1)) for i, kind in enumerate(kinds)}
    extra = {"note": pa.array([f"note {i}" for i in chance.integers(0, 3, n)]), "gone": pa.array(gone(chance, n))}
    nulls = {"deleted": np.asarray(extra["gone"]), "some": chance.random(n) < 0.2, "none": None}
    return pa.table(
        {**keys, "val": column(value, numbers, nulls[gone.__name__]), **extra, "time": begin + np.arange(n) // 3}
    )


def deleted(chance: Any, n: int) -> Any:
    """A fifth deletes, with null for a value."""
    return chance.random(n) < 0.2


def some(chance: Any, n: int) -> Any:
    """A fifth deletes, and others have null for a value."""
    return chance.random(n) < 0.2


def none(chance: Any, n: int) -> Any:
    """A fifth deletes, with a value."""
    return chance.random(n) < 0.2


def run(
    tables: list[pa.Table], keys: int, held_back: bool, threads: int, place: Path | None, **options: Any
) -> list[Any]:
    """The updates of each step, and all that is held in the end; on durable state opened again in between."""
    flow = dd.Flow()
    spec: dict[str, Any] = {
        "key": [f"k{i}" for i in range(keys)],
        "delete": "gone",
        "value": ["val", "note"],
        **options,
    }
    rows = flow.upserts(
        "rows", tables[0].schema, dd.Upsert(**spec, **({"time": "time"} if held_back else {"order_by": "time"}))
    )
    flow.output("out", rows)
    flow.output("some", rows.project(["val"]).count("val"))
    out, engine = list[Any](), flow.open(place, secret=Secret(5, 6), threads=threads)
    for number, table in enumerate(tables):
        if held_back:
            engine.push({"rows": table})
            step = engine.advance_to(table["time"][-1].as_py() + 1)
        else:
            step = engine.step({"rows": table}, time=number)
        out += [step["out"], step["some"]]
        if place is not None and number == 1:
            engine.close()
            engine = flow.open(place, threads=threads)
    out += [engine.read("rows"), engine.read("out")]
    engine.close()
    return out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether values can be computed from hashes, each time that this was asked."""
    answers, of = list[bool](), Resolved._can_unhash_column

    def ask(self: Resolved, name: str) -> bool:
        answers.append(of(self, name))
        return answers[-1]

    monkeypatch.setattr(Resolved, "_can_unhash_column", ask)
    yield answers


def same(monkeypatch: pytest.MonkeyPatch, *given: Any, place: Path | None = None, **options: Any) -> None:
    """Assert that few and many updates are the same, row by row, also if rows are stored in the order of events."""
    found = []
    for least, bulk in ((0, 1 << 40), (1 << 40, 1 << 40), (0, 1)):
        monkeypatch.setattr(resolution, "BULK", bulk)
        for module in (resolution, small_steps):
            monkeypatch.setattr(module, "SMALL", least)
        found.append(run(*given, None if place is None else place / f"{least}-{bulk}", **options))
    for each in zip(*found, strict=True):
        assert each[0].equals(each[1]) and each[0].equals(each[2])


@pytest.mark.parametrize("held_back", [False, True])
@pytest.mark.parametrize("value", [*UNHASHED, *GATHERED], ids=str)
def test_a_column_of_words_that_alone_is_compared_is_computed_from_its_hash(
    value: pa.DataType, held_back: bool, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [events([pa.int64()], value, 60, begin, deleted) for begin in (0, 20, 40, 60)]
    same(monkeypatch, tables, 1, held_back, 1, track=["val"])
    assert any(asked) == (value in UNHASHED)


@pytest.mark.parametrize("kinds", KEYS, ids=str)
@pytest.mark.parametrize("gone", [deleted, some, none])
def test_whatever_the_key_is_and_wherever_nulls_are(
    kinds: list[pa.DataType], gone: Any, asked: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [events(kinds, pa.int64(), 60, begin, gone) for begin in (0, 20, 40, 60)]
    same(monkeypatch, tables, len(kinds), False, 1, place=tmp_path, noop_ignore=["note"])
    # From the first null on that a row has, its column is gathered.
    assert any(asked) == (gone is not some)


def test_with_all_columns_compared_none_is_unhashed_and_a_null_ends_it(
    asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [events([pa.int64()], pa.int64(), 60, begin, deleted) for begin in (0, 20)]
    same(monkeypatch, tables, 1, True, 1)
    assert asked and not any(asked)
    asked.clear()
    tables.append(events([pa.int64()], pa.int64(), 60, 40, some))
    same(monkeypatch, tables, 1, True, 1, track=["val"])
    assert asked[0] and not asked[-1]


def test_threads_compute_the_same_values(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [events([pa.int64()], pa.int64(), 60_000, begin, deleted) for begin in (0, 20_000, 40_000)]
    same(monkeypatch, tables, 1, True, 3, track=["val"])
    assert any(asked)

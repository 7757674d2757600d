"""Test an upsert through every kernel on small data: compiled, with bounds checks, and as plain Python."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import ddflow as dd

pytestmark = pytest.mark.kernels
SECRET = dd.Secret(0x0123456789ABCDEF, 0xFEDCBA9876543210)
CITIES = ["Bern", "Basel", "", None, "St. Gallen, " * 9]


def rows_of(table: pa.Table, *names: str) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for row in table.to_pylist():
        total[tuple(row[name] for name in names)] += row["_diff"]
    return Counter({row: n for row, n in total.items() if n})


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_epochs_of_upserts_agree_with_a_dict_through_merges_deletes_and_counts(kind: pa.DataType) -> None:
    chance = random.Random(4)
    flow = dd.Flow()
    values = [("city", pa.string()), ("x", pa.float64()), ("at", pa.int16()), ("gone", pa.bool_())]
    schema = pa.schema([pa.field("k", kind, nullable=False), *values])
    input = flow.upserts("s", schema, dd.Upsert("k", order_by="at", delete=dd.tombstone("gone")))
    flow.output("rows", input)
    flow.output("by_city", input.project(["city"]).count())
    flow.output("both", input.filter("x > 0.5").project(["city"]).concat(input.project(["city"]).negate()))
    twin: dict[Any, tuple[int, Any]] = {}
    total: dict[str, Counter[Any]] = {name: Counter() for name in flow.outputs}
    columns = {"rows": ("k", "city", "x", "at"), "by_city": ("city", "count"), "both": ("city",)}
    with flow.open(secret=SECRET) as engine:
        for time in range(90):
            events: list[Any] = []
            for _ in range(chance.randrange(8)):
                city, x, at = chance.choice(CITIES), chance.choice([0.0, 1.0]), chance.randrange(time + 2)
                events.append((chance.randrange(25), city, x, at, chance.random() < 0.2))
            if kind == pa.string():
                events = [(str(k), *rest) for k, *rest in events]
            names = schema.names
            given = pa.Table.from_pylist([dict(zip(names, event, strict=True)) for event in events], schema=schema)
            out = engine.step({"s": given}, time=time)
            for key, city, x, at, gone in events:
                if key not in twin or at >= twin[key][0]:
                    twin[key] = (at, None if gone else (city, x))
            for name in flow.outputs:
                total[name].update(rows_of(out[name], *columns[name]))
        engine._check_invariants()
        assert engine.stats()["arrangements"]["s"]["copied"] > 0
        live = {(key, *value, at) for key, (at, value) in twin.items() if value is not None}
        cities, poor = Counter(row[1] for row in live), Counter(row[1] for row in live if not row[2] > 0.5)
        less = Counter({(city,): -n for city, n in poor.items()})
        expected = {"rows": Counter(live), "by_city": Counter(cities.items()), "both": less}
        for name in flow.outputs:
            assert Counter({row: n for row, n in total[name].items() if n}) == expected[name]
            assert rows_of(engine.read(name), *columns[name]) == expected[name]


def test_events_that_wait_are_judged_in_the_order_of_times_with_history_kept() -> None:
    flow = dd.Flow()
    schema = {"k": pa.int32(), "word": pa.string(), "t": pa.timestamp("s")}
    spec = dd.Upsert("k", order_by="word", time="t", late="advance", tie="greatest", stale="side", lateness=2)
    input = flow.upserts("s", schema, spec)
    flow.output("rows", input)
    flow.output("n", input.count(by=[]))

    def push(*events: tuple[int, str | None, int]) -> Any:
        k, word, t = zip(*events, strict=True)
        columns = pa.array(k, pa.int32()), pa.array(word), pa.array(t).view(pa.timestamp("s"))
        return engine.push({"s": pa.table(list(columns), ["k", "word", "t"])})

    with flow.open(retain=100, verdicts="rows", secret=SECRET) as engine:
        assert push((1, "b", 5), (2, "a", 3), (1, "a", 5), (2, "c", 2), (1, None, 1)).verdicts.pending == 3
        assert engine.frontier == 3
        late = push((2, "z", 0), (3, "y", 9))
        assert engine.frontier == 7
        assert str(late.verdicts) == "applied 2, superseded 1, stale 1, pending 1"
        assert rows_of(late["s.stale"], "k", "word", "_winner_word") == {(2, "z", "a"): 1}
        listed = Counter(row["verdict"] for row in late.verdicts.rows["s"].to_pylist())
        assert listed == {"applied": 2, "superseded": 1, "stale": 1}
        engine.advance_to(dd.CLOSED)
        engine._check_invariants()
        words = {t: rows_of(engine.read("rows", t), "k", "word") for t in range(2, 10)}
    assert words[2] == {(1, None): 1, (2, "c"): 1}
    assert words[4] == {(1, None): 1, (2, "a"): 1}
    assert words[5] == words[8] == {(1, "b"): 1, (2, "a"): 1}
    assert words[9] == {(1, "b"): 1, (2, "a"): 1, (3, "y"): 1}

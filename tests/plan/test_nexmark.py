"""The queries of Nexmark beside DuckDB, after every step of events, changes and deletions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from accumulated import Accumulated, duck, rows_of, same
from chance import seeded
from nexmark_feed import Feed, flow_of
from nexmark_queries import KEYS, QUERIES, SECONDS, TYPES

import ddflow as dd

NUMBERS = list(QUERIES)


def proved(numbers: list[int], steps: int, events: int) -> None:
    """After each step every query reads as DuckDB answers, and all differences add up to it."""
    flow, witness = flow_of(), Accumulated(TYPES, KEYS, threads=1)
    for number in numbers:
        flow.output(f"q{number}", flow.sql(QUERIES[number]))
    told: dict[int, Counter[Any]] = {number: Counter() for number in numbers}
    with flow.open() as engine:
        for at, step in enumerate(Feed(events).steps(steps)):
            given = engine.step(step, time=at)
            witness.apply(step)
            for number in numbers:
                told[number].update(rows_of(given[f"q{number}"]))
                read = engine.read(f"q{number}")
                assert {row: n for row, n in told[number].items() if n} == rows_of(read), f"q{number}, step {at}"
                asked = duck(QUERIES[number].replace(SECONDS, "cast(floor(epoch(at)) as bigint)"))
                assert not same(read, witness.answer(asked)), f"q{number}, step {at}"
                assert read.num_rows, "a query found nothing, so it showed nothing"
    witness.close()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_query_gives_what_duckdb_gives(number: int) -> None:
    proved([number], steps=5, events=2000)


def test_all_queries_in_one_flow_give_what_duckdb_gives() -> None:
    proved(NUMBERS, steps=5, events=2000)


def looked_up(steps: int, events: int) -> None:
    """Query 13: each bid beside what a side table, which changes, had of its auction when the bid came."""
    flow, kinds = flow_of(), {**TYPES, "side": {"key": pa.int64(), "value": pa.string()}}
    schema = pa.schema([*kinds["side"].items(), ("gone", pa.bool_())])
    side = flow.upserts("side", schema, dd.Upsert("key", delete=dd.tombstone("gone", True)))
    bids = flow.inputs["bid"].project(["id", "auction", "bidder", "price", "at"])
    flow.output("q13", bids.lookup(side, on={"auction % 100": "key"}).project([*bids.schema.names, "value"]))
    witness, draw, told = Accumulated(kinds, {**KEYS, "side": ["key"]}, threads=1), seeded("q13"), Counter[Any]()
    made = "select b.id, auction, bidder, price, b.at, value from bid b left join side on auction % 100 = side.key"
    witness.connection.execute(f"create table found as {made}")
    with flow.open() as engine:
        for at, step in enumerate(Feed(events).steps(steps)):
            changed = [(key, f"value {at}.{key}", draw.random() < 0.2) for key in range(100) if draw.random() < 0.5]
            step["side"] = pa.table(dict(zip(schema.names, map(list, zip(*changed, strict=True)), strict=True)), schema)
            told.update(rows_of(engine.step(step, time=at)["q13"]))
            witness.apply(step)
            same_bid = "found.id = b.id and found.bidder = b.bidder and found.price = b.price and found.at = b.at"
            kept = f"select 1 from bid b where {same_bid} and found.auction = b.auction"
            witness.connection.execute(f"delete from found where not exists ({kept})")
            witness.connection.execute(f"insert into found {made} where b.id not in (select id from found)")
            read = engine.read("q13")
            assert {row: n for row, n in told.items() if n} == rows_of(read), f"step {at}"
            assert not same(read, witness.answer("select * from found")), f"step {at}"
        assert len({row[-1] for row in told}) > 100
    witness.close()


def test_query_13_gives_each_bid_what_the_side_table_had_when_it_came() -> None:
    looked_up(steps=5, events=2000)


@pytest.mark.soak
def test_query_13_does_at_scale() -> None:
    looked_up(steps=20, events=10_000)


@pytest.mark.soak
@pytest.mark.parametrize("number", NUMBERS)
def test_a_query_gives_what_duckdb_gives_at_scale(number: int) -> None:
    proved([number], steps=20, events=10_000)

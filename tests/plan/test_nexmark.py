"""Test the Nexmark queries beside DuckDB, after every step of events, changes and deletions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from accumulated import Accumulated, duck, rows_of, same
from chance import sample
from nexmark_feed import Feed, flow_of
from nexmark_queries import BIDS_BY_STEP_TIME, IN_DUCKDB, KEYS, QUERIES, TYPES

import ddflow as dd

NUMBERS = list(QUERIES)
SIDE = {"key": pa.int64(), "value": pa.string()}


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
                asked = IN_DUCKDB.get(number) or duck(QUERIES[number])
                assert not same(read, witness.answer(asked)), f"q{number}, step {at}"
                assert read.num_rows, "a query found nothing, so it showed nothing"
    witness.close()


@pytest.mark.sampled
@pytest.mark.parametrize("number", sample(NUMBERS, 3, __name__))
def test_a_query_gives_what_duckdb_gives(number: int) -> None:
    proved([number], steps=5, events=2000)


@pytest.mark.drawn(1, of="all queries")
def test_all_queries_in_one_flow_give_what_duckdb_gives() -> None:
    proved(NUMBERS, steps=5, events=2000)


def side_steps(keys: int) -> Iterator[pa.Table]:
    """What query 13 looks up: some keys come, change or go in each step."""
    chance, at = np.random.default_rng(7), 0
    while True:
        some, at = chance.permutation(keys)[: keys // 2], at + 1
        columns = {"key": some, "value": [f"{at} of {key}" for key in some], "gone": chance.random(len(some)) < 0.2}
        yield pa.table(columns)


def test_query_13_keeps_what_a_bid_found_when_it_came() -> None:
    flow, witness = flow_of(), Accumulated(TYPES | {"side": SIDE}, KEYS | {"side": ["key"]}, threads=1)
    asked = "select auction, bidder, price, at, value from found"
    gone = dd.Upsert(key="key", delete=dd.tombstone("gone", True))
    side = flow.upserts("side", SIDE | {"gone": pa.bool_()}, gone)
    found = flow.sql("select *, auction % 10 as slot from bid").lookup(side, on={"slot": "key"}, how="inner")
    flow.output("q13", flow.sql(asked, found=found))
    witness.connection.execute("create table found as select *, '' as value from bid")
    told = Counter[Any]()
    with flow.open() as engine:
        for at, (step, values) in enumerate(zip(Feed(1000).steps(6), side_steps(10), strict=False)):
            told.update(rows_of(engine.step(step | {"side": values}, time=at)["q13"]))
            witness.apply(step | {"side": values})
            witness.connection.register("step", step["bid"])
            witness.connection.execute("delete from found using step where found.id = step.id")
            witness.connection.execute(
                "insert into found select bid.*, value from bid semi join step using (id) "
                "join side on auction % 10 = key"
            )
            read = engine.read("q13")
            assert {row: n for row, n in told.items() if n} == rows_of(read)
            assert not same(read, witness.answer(duck(asked)))
    witness.close()


def test_query_12_counts_bids_in_windows_of_the_times_of_steps() -> None:
    flow, witness = flow_of(ingested="p_time"), Accumulated(TYPES, KEYS, threads=1)
    flow.output("q12", flow.sql(BIDS_BY_STEP_TIME))
    witness.connection.execute("create table came as select *, timestamp '1970-01-01' as p_time from bid")
    start = "time_bucket(interval 10 seconds, p_time)"
    asked = f"select bidder, count(*), {start} as s, s + interval 10 seconds from came group by bidder, s"
    told = Counter[Any]()
    with flow.open() as engine:
        for at, step in enumerate(Feed(1000).steps(6)):
            time = datetime(2026, 1, 1) + timedelta(seconds=4 * at)
            told.update(rows_of(engine.step(step, time=time)["q12"]))
            witness.apply(step)
            witness.connection.register("step", step["bid"])
            witness.connection.execute("delete from came using step where came.id = step.id")
            witness.connection.execute("insert into came select bid.*, ? from bid semi join step using (id)", [time])
            read = engine.read("q12")
            assert {row: n for row, n in told.items() if n} == rows_of(read)
            assert not same(read, witness.answer(asked)), f"step {at}"
        assert len({row["starttime"] for row in read.to_pylist()}) == 3
    witness.close()


@pytest.mark.soak
@pytest.mark.parametrize("number", NUMBERS)
def test_a_query_gives_what_duckdb_gives_at_scale(number: int) -> None:
    proved([number], steps=20, events=10_000)

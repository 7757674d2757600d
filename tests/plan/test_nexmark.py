"""The queries of Nexmark beside DuckDB, after every step of events, changes and deletions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from accumulated import Accumulated, duck, rows_of, same
from nexmark_feed import Feed, flow_of
from nexmark_queries import KEYS, QUERIES, SECONDS, TYPES

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


@pytest.mark.soak
@pytest.mark.parametrize("number", NUMBERS)
def test_a_query_gives_what_duckdb_gives_at_scale(number: int) -> None:
    proved([number], steps=20, events=10_000)

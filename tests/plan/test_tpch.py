"""Test the 22 TPC-H queries beside DuckDB after every step of upserts and deletes, and the sums of differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from accumulated import Accumulated, duck, rows_of, same
from chance import mid_test, sample
from tpch_feed import Feed, files, flow_with
from tpch_queries import KEYS, QUERIES, TYPES, text

import ddflow as dd

NUMBERS = list(QUERIES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tables are made."""
    return tmp_path_factory.mktemp("tpch")


def opened(flow: dd.Flow, steps: int, state: Path | None, options: dict[str, Any]) -> Iterator[dd.Engine]:
    """An engine for each step: the same one, or on a state one after the other."""
    if state is None:
        with flow.open(**options) as engine:
            for _ in range(steps):
                yield engine
    else:
        for _ in range(steps):
            with flow.open(state, **options) as engine:
                yield engine


def proved(
    folder: Path, scale: float, numbers: Sequence[int], steps: int, count: int, state: Path | None = None, **how: Any
) -> None:
    """After each step every query reads as DuckDB answers, and all differences add up to it."""
    flow, names = flow_with(numbers, scale)
    witness = Accumulated({name: TYPES[name] for name in names}, KEYS, threads=1)
    told: dict[int, Counter[Any]] = {number: Counter() for number in numbers}
    seen = set[int]()
    feed = Feed(files(folder, scale), count, names=names)
    for at, (engine, step) in enumerate(zip(opened(flow, steps, state, how), feed.steps(steps), strict=True)):
        given = engine.step(step, time=at)
        witness.apply(step)
        for number in numbers:
            told[number].update(rows_of(given[f"q{number}"]))
            read = engine.read(f"q{number}")
            assert {row: n for row, n in told[number].items() if n} == rows_of(read), f"q{number}, step {at}"
            assert not same(read, witness.answer(duck(text(number, scale)))), f"q{number}, step {at}"
            if read.num_rows:
                seen.add(number)
    witness.close()
    assert seen == set(numbers), "a query found nothing, so it showed nothing"


@mid_test
@pytest.mark.sampled
@pytest.mark.parametrize("number", sample(NUMBERS, 4, __name__))
def test_a_query_gives_what_duckdb_gives(folder: Path, number: int) -> None:
    proved(folder, 0.01, [number], steps=5, count=4000)


@pytest.mark.drawn(1, of="all queries")
def test_all_queries_in_one_flow_give_what_duckdb_gives(folder: Path) -> None:
    proved(folder, 0.01, NUMBERS, steps=5, count=4000)


def test_queries_in_one_flow_share_arrangements() -> None:
    def arranged(numbers: Sequence[int]) -> int:
        with flow_with(numbers, 0.01)[0].open() as engine:
            return len(engine.stats()["arrangements"])

    assert arranged(NUMBERS) < 0.8 * sum(arranged([number]) for number in NUMBERS)


@mid_test
@pytest.mark.drawn(1, of="all queries")
def test_all_queries_on_a_state_that_is_opened_again_under_a_budget(folder: Path, tmp_path: Path) -> None:
    proved(folder, 0.01, NUMBERS, steps=5, count=4000, state=tmp_path / "state", memory="16MB")


@pytest.mark.soak
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("scale", [0.1, 1])
def test_a_query_gives_what_duckdb_gives_at_scale(folder: Path, scale: float, number: int) -> None:
    proved(folder, scale, [number], steps=20, count=5000)

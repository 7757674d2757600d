"""Test failing expressions on Spark: equal rows of all partitions and stages are netted before an error counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import long_on_spark
from messages import raises
from pyspark.sql import SparkSession
from spark_session import counted, frame_of
from stages_by_hand import by_hand

import ddflow as dd
import spark_bridge
from ddflow.errors import DdflowError, ExpressionError, NotSingle
from ddflow.partitions.stages import cut_stages

pytestmark = pytest.mark.together("spark")

Tables = dict[str, pa.Table]


def flow_of() -> dd.Flow:
    """Pads leave the stage of one side and come back from that of the other, without the columns that tell where."""
    flow = dd.Flow()
    flow.upserts("g", {"id": int, "k": int}, dd.Upsert(key="id"))
    flow.upserts("b", {"id": int, "k": int, "v": int}, dd.Upsert(key="id"))
    flow.output("share", flow.sql("select 10 / coalesce(b.v, 0) r from g left join b on g.k = b.k"))
    flow.output("one", flow.sql("select g.id, (select b.v from b where b.k = g.k) v from g"))
    return flow


def tables(g: list[tuple[int, int]], b: list[tuple[int, int, int]]) -> Tables:
    rows: list[tuple[str, list[Any], tuple[str, ...]]] = [("g", g, ("id", "k")), ("b", b, ("id", "k", "v"))]
    return {
        name: pa.table({column: pa.array([row[i] for row in each], pa.int64()) for i, column in enumerate(columns)})
        for name, each, columns in rows
    }


FINE = tables([(n, n) for n in range(20)], [(n, n, 1 + n % 3) for n in range(20)])
CORRECTED = tables([(20, 20)], [(20, 20, 5), (3, 3, 2)])
UNASKED = tables([], [(30, 30, 1), (31, 30, 2)])
FAILING: list[tuple[Tables, type[DdflowError], str]] = [
    (tables([(50, 50)], []), ExpressionError, "divide by zero"),
    (tables([(1, 2)], [(2, 2, 0)]), ExpressionError, "divide by zero"),
    (tables([(50, 30)], []), NotSingle, "it has 2 rows where k = 30"),
]


def test_rows_that_failed_are_brought_together_on_the_last_stage() -> None:
    stages = cut_stages(flow_of())
    tests = [each for each in stages.exchanges if each.tests is not None]
    assert {stages.flow.nodes[each.tests].verb for each in tests if each.tests is not None} == {"project", "single"}
    assert {each.stage for each in tests} == {stages.stages - 1}
    for each in tests:
        assert all(each.tests not in active for active in stages.active[each.stage :])


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_run_without_a_state_gives_what_one_engine_gives(partitions: int) -> None:
    found = by_hand(flow_of(), {name: [table] for name, table in FINE.items()}, partitions)
    with flow_of().open() as engine:
        step = engine.step(FINE, time=0)
        assert all(counted(found[name]) == counted(step[name]) for name in flow_of().outputs)
    with raises(ExpressionError):
        by_hand(flow_of(), {"g": [FINE["g"]], "b": [FINE["b"].slice(1)]}, partitions)


@long_on_spark
def test_epochs_of_a_state_are_refused_for_rows_that_are_there(spark: SparkSession, tmp_path: Path) -> None:
    state = str(tmp_path / "state")

    def run(given: Tables) -> Any:
        frames = {name: frame_of(spark, table) for name, table in given.items()}
        return spark_bridge.run(flow_of(), frames, state=state, partitions=3)

    with flow_of().open() as engine:
        for epoch, given in enumerate((FINE, CORRECTED, UNASKED), 1):
            out, step = run(given), engine.step(given, time=epoch)
            assert all(counted(out[name].toArrow()) == counted(step[name]) for name in flow_of().outputs)
        for given, error, found in FAILING:
            with pytest.raises(error, match=found):
                run(given)
            assert all(counted(dd.read(state, name)) == counted(engine.read(name)) for name in flow_of().outputs)
    assert dd.fsck(state).ok

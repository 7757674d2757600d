"""Test the laws of operators on Spark: each operator of the registry gives its twin's rows.

The examples are the rows of ``operator_table``; ``test_operators`` tests their other laws. A Spark job costs about a
second, so each operator has one job of a few hundred rows in three partitions.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from operator_table import MADE, TABLE, Row
from pyspark.sql import SparkSession
from spark_session import frame_of
from test_operators import clean, flow_of, holding, summed, table

import spark_bridge

pytestmark = pytest.mark.together("spark")

CHANCE = random.Random(7)
STEP: list[tuple[int, Row | None]] = [
    (
        key,
        None
        if key % 9 == 4
        else (
            CHANCE.choice(["Bern", "Chur", None]),
            CHANCE.choice([0, 1, 2, 3, None]),
            CHANCE.choice([None, (), ("a",), ("a", "b")]),
        ),
    )
    for key in range(300)
]


@pytest.mark.drawn(16)
@pytest.mark.parametrize("verb", sorted({**TABLE, **MADE}))
def test_spark_gives_the_same(verb: str, spark: SparkSession) -> None:
    law, rows = {**TABLE, **MADE}[verb], table(STEP)
    parts = [rows.slice(begin, 100) for begin in range(0, 300, 100)]
    frame = spark_bridge.run(flow_of(law), {"rows": frame_of(spark, *parts)})["out"]
    found: pa.Table = frame.toArrow()
    [held] = holding([STEP])
    assert summed(found) == clean(law.scratch(held))

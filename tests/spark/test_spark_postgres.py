"""Test a Postgres table as a sink on Spark, with a server that stops and returns."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from chance import mid_on_spark
from postgres_server import Server
from pyspark.sql import SparkSession
from test_spark_kafka import flow, held, people

import ddflow as dd
import spark_bridge

pytestmark = pytest.mark.together("spark")


@mid_on_spark
def test_a_table_of_postgres_gets_each_epoch_once(spark: SparkSession, tmp_path: Path) -> None:
    """As of an epoch that its server took and did not answer."""
    rows = [people(*range(6)), people(1, 2, city="Chur"), people(3, city="Genf")]
    with closing(Server()) as server:
        state = str(tmp_path / "state")
        sinks = {
            "by_city": dd.sinks.postgres(server.url, "by_city"),
            "rows": dd.sinks.postgres(server.url, "log", mode="changelog"),
        }
        for number, given in enumerate(rows):
            frame = spark.createDataFrame([(json.dumps(row),) for row in given], "value string")
            if number == 2:
                server.stop()
                with pytest.raises(dd.errors.SinkFailed):
                    spark_bridge.run(flow(), frame, state=state, sinks=sinks, give_up_after="100ms")
                server.start()
                frame = frame.limit(0)
            ran = spark_bridge.run(flow(), frame, 2 if number == 0 else None, state=state, sinks=sinks)
        assert ran.sinks == {"by_city": 4, "rows": 4}
        with psycopg.connect(server.url) as connection:
            assert sorted(connection.execute("select * from by_city").fetchall()) == held(state, "by_city")
            log = connection.execute("select id, _change_type, _commit_version from log").fetchall()
        assert len(log) == 6 + 2 * 2 + 2 and {version for _, _, version in log} == {1, 2, 3}

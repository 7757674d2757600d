"""Run the README's Spark block unchanged on the tests' session."""

from __future__ import annotations

import re
import runpy
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ddflow as dd
import spark_bridge

pytestmark = pytest.mark.together("spark")

README = Path(__file__).parents[2] / "README.md"


def test_sparks_lines_do_what_they_say(spark: SparkSession, tmp_path: Path) -> None:
    lines = [line.strip() for line in re.findall(r"^ {4}spark.*", README.read_text("utf-8"), re.MULTILINE)]
    assert len(lines) == 4
    folder = tmp_path / "in"
    rows = spark.createDataFrame([(1, "Bern"), (2, "Bern")], "id long, city string")
    rows.write.parquet(str(folder))
    flow = dd.Flow()
    flow.output("by_city", flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id")).count("city"))
    names: dict[str, Any] = {
        "dd": dd,
        "spec": dd.Upsert(key="id"),
        "spark": spark,
        "spark_bridge": spark_bridge,
        "flow": flow,
        "df": rows,
        "stream_df": spark.readStream.schema(rows.schema).parquet(str(folder)),
    }

    def value(line: str) -> Any:
        (tmp_path / "line.py").write_text(f"answer = {line.replace('/mnt/shared', str(tmp_path))}\n")
        return runpy.run_path(str(tmp_path / "line.py"), names)["answer"]

    assert [(row["city"], row["count"]) for row in value(lines[0].partition("  ")[0]).collect()] == [("Bern", 2)]
    assert [(row["city"], row["n"]) for row in value(lines[1]).collect()] == [("Bern", 2)]
    query = value(lines[2])
    while not query.lastProgress or not (tmp_path / "orders").exists():
        assert query.exception() is None
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
    spark.dataSource.register(spark_bridge.DdflowSource)
    followed = value(lines[3]).writeStream.format("memory").queryName("followed").outputMode("append").start()
    followed.processAllAvailable()
    followed.stop()
    assert [(row["city"], row["count"]) for row in spark.table("followed").collect()] == [("Bern", 2)]

"""Test Spark Connect: runs and streams through a server, in a separate process.

A process cannot have a session of Spark Connect and a classic session at once. The tests compare the output. They also
check that a stream's batches are committed by the process of ``foreachBatch``, not by this one.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from chance import long_on_spark

CLIENT = """
import json, os, sys
import pyarrow as pa, pyarrow.parquet as pq
from spark_bridge import ensure_java
ensure_java()
import ddflow as dd, spark_bridge
from pyspark.sql import SparkSession

place = sys.argv[1]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
flow = dd.Flow()
people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
flow.output("by_city", people.project(["city"]).count())
state = os.path.join(place, "state")
first = spark.createDataFrame([(1, "Bern"), (2, "Bern")], "id bigint, city string")
sinks = {"by_city": dd.sinks.sqlite(os.path.join(place, "out.db"), "by_city")}
import io
from spark_bridge import monitoring
class Terminal(io.StringIO):
    def isatty(self):
        return True
monitoring.SILENT, monitoring.LOOK, sys.stderr = 0, 0.05, Terminal()
ran = spark_bridge.run(flow, {"people": first}, state=state, partitions=2, sinks=sinks)
shown, sys.stderr = sys.stderr.getvalue(), sys.__stderr__
out = [["shown", shown], ["run", ran.epoch, ran["by_city"].toArrow().to_pylist()]]
pq.write_table(pa.table({"id": [1, 3], "city": ["Chur", "Bern"]}), os.path.join(place, "in", "1.parquet"))
more = spark.readStream.schema("id bigint, city string").parquet(os.path.join(place, "in"))
stream = spark_bridge.stream(flow, {"people": more}, state=state, trigger={"availableNow": True}, sinks=sinks)
while True:  # Spark gives the process of foreachBatch ten seconds to begin, which a busy machine may need for it
    try:
        query = stream.start()
        break
    except Exception as error:
        if "Timed out while waiting for the Python worker to connect back" not in str(error):
            raise
query.awaitTermination()
out.append(["stream", dd.Snapshot.open(state).epoch, dd.read(state, "by_city").to_pylist()])
bad = spark.createDataFrame([(None, "Chur")], "id bigint, city string")
try:
    spark_bridge.run(flow, {"people": bad}, state=state)
except dd.errors.NullKey as error:
    out.append(["refused", type(error).__name__, 0])
print(json.dumps(out))
spark.stop()
"""


@long_on_spark
@pytest.mark.drawn(2, of="deployments of Spark")
def test_runs_and_streams_go_through_a_server(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    # With SPARK_TESTING the server takes a free port, else a fixed one, which another run of tests may have.
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown, run, stream, refused = json.loads(done.stdout.splitlines()[-1])
    assert "ddflow people: epoch 1; " in shown[1]
    # What the server says before the end depends on its speed; a line with the time is there always.
    assert re.search(r"epoch 1; (\d+ of \d+ stages, \d+ of \d+ tasks, )?\d+ s", shown[1])
    assert run == ["run", 1, [{"city": "Bern", "count": 2, "_time": 1, "_diff": 1}]]
    assert stream[:2] == ["stream", 2]
    assert sorted(stream[2], key=str) == [
        {"city": "Bern", "count": 2, "_diff": 1},
        {"city": "Chur", "count": 1, "_diff": 1},
    ]
    assert refused[:2] == ["refused", "NullKey"]
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        assert sorted(connection.execute("select * from by_city")) == [("Bern", 2), ("Chur", 1)]

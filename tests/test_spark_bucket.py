"""A state in a bucket: runs and a stream on Spark with ``s3://``, against moto's server.

In a process of its own, since workers have the environment that Spark was started with, and that names the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from s3_server import Moto, moto

from ddflow.kernels.cache import candidates

__all__ = ["moto"]

JOB = """
import json, os, sys
import pyarrow as pa, pyarrow.parquet as pq
import ddflow as dd, spark_bridge
from spark_bridge.session import local_session

state, place = sys.argv[1:]
flow = dd.Flow()
people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
flow.output("by_city", people.project(["city"]).count())
with local_session("a bucket", cores=2, memory="1g") as spark:
    first = spark.createDataFrame([(1, "Bern"), (2, "Bern")], "id bigint, city string")
    ran = spark_bridge.run(flow, {"people": first}, state=state, partitions=3)
    again = spark_bridge.run(flow, {"people": first}, state=state, epoch=1)
    out = [ran["by_city"].toArrow().to_pylist(), again.replayed, again["by_city"].toArrow().to_pylist()]
    pq.write_table(pa.table({"id": [1, 3], "city": ["Chur", "Bern"]}), os.path.join(place, "in", "1.parquet"))
    more = spark.readStream.schema("id bigint, city string").parquet(os.path.join(place, "in"))
    query = spark_bridge.stream(flow, {"people": more}, state=state, checkpoint=os.path.join(place, "checkpoint"),
                                trigger={"availableNow": True}).start()
    query.awaitTermination()
    out.append(sorted(dd.read(state, "by_city").to_pylist(), key=str))
    out.append(dd.fsck(state).ok)
print(json.dumps(out))
"""


def test_a_state_in_a_bucket_is_run_into_told_again_and_streamed_into(moto: Moto, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    # The state's local cache is the test's own, that of compiled kernels is not.
    named = {
        "AWS_ENDPOINT_URL": moto.url,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "DDFLOW_CACHE_DIR": str(candidates()[0]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", JOB, f"s3://{moto.bucket()}/states/people", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **named})
    assert done.returncode == 0, done.stderr[-3000:]
    first, replayed, again, held, sound = json.loads(done.stdout.splitlines()[-1])
    assert first == again == [{"city": "Bern", "count": 2, "_time": 1, "_diff": 1}]
    assert replayed and sound
    assert held == [{"city": "Bern", "count": 2, "_diff": 1}, {"city": "Chur", "count": 1, "_diff": 1}]

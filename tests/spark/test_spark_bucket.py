"""Test a state in a bucket: runs and a stream on Spark with ``s3://``, against moto's server.

Python workers get their environment from the session: here the server's address and the test's own cache.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from s3_server import Moto, moto

import ddflow as dd
import spark_bridge
from ddflow.kernels.cache import list_cache_directories

__all__ = ["moto"]

pytestmark = pytest.mark.together("spark")


@pytest.mark.drawn(2, of="deployments of Spark")
def test_a_state_in_a_bucket_is_run_into_told_again_and_streamed_into(
    spark: SparkSession, moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The state's local cache is the test's own, that of compiled kernels is not.
    named = {
        "AWS_ENDPOINT_URL": moto.url,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "DDFLOW_CACHE_DIR": str(list_cache_directories()[0]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    spark.sparkContext.environment.update(named)
    state, place = f"s3://{moto.bucket()}/states/people", tmp_path / "in"
    place.mkdir()
    flow = dd.Flow()
    people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    flow.output("by_city", people.project(["city"]).count())
    first = spark.createDataFrame([(1, "Bern"), (2, "Bern")], "id bigint, city string")
    ran = spark_bridge.run(flow, {"people": first}, state=state, partitions=3)
    again = spark_bridge.run(flow, {"people": first}, state=state, epoch=1)
    told = [{"city": "Bern", "count": 2, "_time": 1, "_diff": 1}]
    assert ran["by_city"].toArrow().to_pylist() == again["by_city"].toArrow().to_pylist() == told
    assert again.replayed
    pq.write_table(pa.table({"id": [1, 3], "city": ["Chur", "Bern"]}), place / "1.parquet")
    more = spark.readStream.schema("id bigint, city string").parquet(str(place))
    query = spark_bridge.stream(
        flow,
        {"people": more},
        state=state,
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
    ).start()
    query.awaitTermination()
    held = sorted(dd.read(state, "by_city").to_pylist(), key=str)
    assert held == [{"city": "Bern", "count": 2, "_diff": 1}, {"city": "Chur", "count": 1, "_diff": 1}]
    assert dd.fsck(state).ok

"""Test separate executors: failing tasks, killed workers and executors, and a state that executors cannot see.

One session has two executors. Each epoch of one state has a different fault, and the results are compared with the
local engine.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from chance import long_on_spark, sample
from messages import raises
from pyspark.sql import SparkSession
from spark_faults.faulty import Elsewhere, Faulty, attempts
from spark_session import SETTINGS, counted, frame_of, locally
from test_spark import city_flow, halves, orders_of
from test_spark_state import same_epoch
from test_spark_stream import WatchedStream

import ddflow as dd
import spark_bridge
from ddflow.errors import NullKey, StateRefused
from spark_bridge import epochs, job
from spark_bridge.session import configure, local_settings

pytestmark = pytest.mark.together("cluster")

MORE = {
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    "spark.pyspark.python": sys.executable,
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "50ms",
}


@pytest.fixture(scope="module")
def cluster(alone: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    spark_bridge.ensure_java()
    builder = SparkSession.builder.appName("faults").master("local-cluster[2,1,1024]")
    for name, value in {**local_settings(tmp_path_factory.mktemp("spark"), "1g"), **MORE, **SETTINGS}.items():
        if name != "spark.driver.extraJavaOptions":
            builder = builder.config(name, value)
    session = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    application = session.sparkContext.applicationId
    yield session
    session.stop()
    for home in (Path(job.__file__).parents[1], *Path(sys.prefix).glob("lib/*/site-packages/pyspark")):
        shutil.rmtree(home / "work" / application, ignore_errors=True)


class Story:
    """A state and the local engine beside it; ``epoch``: the last; ``told``: updates of all."""

    def __init__(self, folder: Path) -> None:
        self.flow, self.state, self.epoch, self.told = city_flow(), str(folder / "state"), 0, 0
        self.outputs = folder / "outputs"
        self.engine = self.flow.open()


@pytest.fixture(scope="module")
def story(cluster: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    made = Story(tmp_path_factory.mktemp("story"))
    yield made
    for name in made.flow.outputs:
        assert counted(dd.read(made.state, name)) == counted(made.engine.read(name)), name
    assert sum(pq.read_metadata(path).num_rows for path in made.outputs.glob("*/[!.]*.parquet")) == made.told
    assert dd.fsck(made.state).ok
    made.engine.close()


def dying(monkeypatch: pytest.MonkeyPatch, folder: Path, death: str, stage: int) -> None:
    """Let one attempt at a task of a stage die."""
    mapped = job.map_arrow
    for module in (job, epochs):
        monkeypatch.setattr(
            module,
            "map_arrow",
            lambda frame, task, *schema: mapped(frame, Faulty(task, str(folder), death, stage), *schema),
        )


CASES = [("fails", -1), ("worker", 0), ("executor", 2)]
MANY = [(death, stage) for death in ("fails", "worker", "executor") for stage in (-1, 0, 1, 2)]


def goes_on(
    story: Story, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, death: str, stage: int
) -> list[tuple[int, int]]:
    """One more epoch, in which something dies; the attempts that there were."""
    dying(monkeypatch, folder, death, stage)
    story.epoch += 1
    rows = orders_of(60, seed=story.epoch)
    ran = spark_bridge.run(
        story.flow, {"orders": frame_of(spark, *halves(rows, 2))}, 3, state=story.state, outputs=str(story.outputs)
    )
    story.told += sum(ran.updates(name) for name in ran)
    # Read when the executor is gone, too: the files are all that matters.
    same_epoch(ran, story.engine.step({"orders": rows}, time=story.epoch), "by_city")
    assert (folder / "died").exists()
    return attempts(str(folder))


@pytest.mark.drawn(2, of="cluster")
@pytest.mark.parametrize(("death", "stage"), CASES)
def test_what_dies_in_a_task_is_done_again_and_each_diff_is_there_once(
    story: Story, cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, stage: int
) -> None:
    made = goes_on(story, cluster, tmp_path, monkeypatch, death, stage)
    tasks = {each: made.count(each) for each in made}
    again = {at for (at, _), n in tasks.items() if n > 1}
    assert stage in again


@pytest.mark.soak
@pytest.mark.parametrize(("death", "stage"), MANY * 3)
def test_whatever_dies_wherever_each_diff_is_there_once(
    story: Story, cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, stage: int
) -> None:
    goes_on(story, cluster, tmp_path, monkeypatch, death, stage)


@long_on_spark
@pytest.mark.drawn(2, of="cluster")
@pytest.mark.sampled
@pytest.mark.parametrize(("death", "stage"), sample([("worker", 0), ("executor", 2)], 1, __name__))
def test_a_run_without_a_state_gives_the_same_when_something_dies(
    cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, stage: int
) -> None:
    dying(monkeypatch, tmp_path, death, stage)
    flow, rows = city_flow(), orders_of(300)
    frames = spark_bridge.run(flow, {"orders": frame_of(cluster, *halves(rows))}, 3)
    expected = counted(locally(flow, {"orders": rows})["sizes"])
    assert counted(frames["sizes"].toArrow()) == expected
    assert (tmp_path / "died").exists()
    made = attempts(str(tmp_path))
    assert stage in {at for at, _ in made if made.count((at, _)) > 1}
    assert counted(frames["sizes"].toArrow()) == expected


@long_on_spark
@pytest.mark.drawn(2, of="cluster")
def test_a_state_that_executors_cannot_see_is_refused_before_they_work(
    cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, frame = city_flow(), frame_of(cluster, orders_of(30))
    monkeypatch.chdir(tmp_path)
    with flow.open("another") as engine:
        engine.step({"orders": orders_of(3)}, time=1)
    mapped = job.map_arrow
    for there in ("nowhere", "another"):
        with monkeypatch.context() as patch:
            patch.setattr(
                job, "map_arrow", lambda frame, body, at=str(tmp_path / there): mapped(frame, Elsewhere(body, at))
            )
            with raises(StateRefused) as told:
                spark_bridge.run(flow, {"orders": frame}, 2, state="state")
        assert os.uname().nodename in told.value.asked and "mount the same folder" in told.value.fix
        assert not os.listdir("state/blobs")
    # What is named from the driver's own folder is the same for all, though they have others.
    ran = spark_bridge.run(flow, {"orders": frame}, 2, state="state", outputs="outputs")
    assert ran.epoch == 1 and ran["paid"].count() == ran.updates("paid") > 0


@long_on_spark
@pytest.mark.drawn(2, of="cluster")
@pytest.mark.parametrize("death", ["worker", pytest.param("executor", marks=pytest.mark.soak)])
def test_a_stream_on_executors_goes_on_when_one_is_killed(
    cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": "int64", "city": "string", "at": "int64"}, dd.Upsert("id", order_by="at"))
    flow.output("by_city", orders.count("city"))
    fed = WatchedStream(cluster, tmp_path, flow)
    marks = tmp_path / "marks"
    marks.mkdir()
    dying(monkeypatch, marks, death, 1)
    fed.give(*(orders_of(40, seed=seed).select(["id", "city", "at"]) for seed in (1,)))
    fed.run(memory="64MB")
    fed.check()
    assert (marks / "died").exists()
    fed.give(orders_of(3).select(["id", "city", "at"]).set_column(0, "id", [[None, 1, 2]]))
    with pytest.raises(NullKey):  # four attempts, one error
        fed.run(memory="64MB")

"""One measurement on Spark: a contender, its input and a session of its own in a fresh process, timed and checked.

Invariant: a batch job runs over a few rows, then twice at full size, and the second counts; a stream runs once, and its
first batches do not count, each batch being timed by Spark itself (``triggerExecution``: from planning to the commit of
its offsets, alike for all). A JVM compiles what it runs often, workers are started by the first job, and a figure over
all batches would be of that. Answers are read back after the clock has stopped. Run as a program this is the child.

>>> halves([{"numInputRows": 5, "durationMs": {"triggerExecution": 70}}, {"numInputRows": 0, "durationMs": {}}] * 3, 1)
([70, 70, 70], 10, 0.14)
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import child
import memory
import spark_disk
import spark_work
from spark_work import Job

WARM_ROWS = 50_000
TIMEOUT = 3 * 3600  # seconds; the slow ones are very slow
JVM = "3g"
PATH = (os.environ["PYTHONPATH"],) if os.environ.get("PYTHONPATH") else ()
CORES = 2
IDLE = ("ceiling", "floor")  # these do no work, so they have no updates
PROTOBUF = ("rows", "transform-pandas")  # these need protobuf, which PySpark does not bring


class Sample(NamedTuple):
    """What a job gave: seconds, bytes, and what its updates come to (none from the idle)."""

    seconds: float  # of what counts
    counted: int  # rows that these seconds were for
    batch_ms: list[int]  # of every batch of a stream, those that do not count among them
    total_seconds: float  # from the start to the last commit
    resident: int  # of all processes together, at most, the JVM among them
    private: int
    state: int  # bytes on disk at the end, older versions among them
    live: int  # bytes of the newest version's files
    updates: int
    checksum: str
    figures: dict[str, int]  # what ddflow tells of an epoch: microseconds and bytes, medians


def able(contender: str) -> bool:
    """Whether what a contender needs is installed."""
    if contender not in PROTOBUF:
        return True
    try:
        import google.protobuf
    except ImportError:
        return False
    return bool(google.protobuf.__version__)


def measure(job: Job) -> Sample:
    """Run ``job`` in a fresh process; `child.Broken` when that fails."""
    return Sample(**child.ask(__file__, job._asdict(), timeout=TIMEOUT))


def run(**fields: Any) -> dict[str, Any]:
    """The child: a session, the job in it, and its memory."""
    job = Job(**fields)
    if job.contender == "expected":
        return spark_work.expected(job)._asdict()
    spark_work.files(job)
    if job.contender == "ddflow":
        import spark_ours

        from ddflow.tools.warmup import warm

        warm(None)
        os.environ["PYSPARK_SUBMIT_ARGS"] = spark_ours.session_settings()
    from spark_bridge.session import local_session

    with local_session("bench", cores=CORES, memory=JVM) as spark, spark_work.Tree() as tree:
        sample = measured(job, spark)
    return sample._replace(resident=tree.resident, private=tree.private)._asdict()


def measured(job: Job, spark: Any) -> Sample:
    """Run ``job`` in a session, in folders of its own that are gone afterwards."""
    import spark_peers

    spark_peers.configure(spark)
    # Workers import the peers' operators by name.
    spark.sparkContext.environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).resolve().parent), *PATH))
    with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
        return (_stream if job.step else _batch)(job, spark, folder)


def _batch(job: Job, spark: Any, folder: str) -> Sample:
    import spark_ours
    import spark_peers

    (path,) = spark_work.files(job)
    frame = spark.read.parquet(str(path))
    took, figures = list[float](), dict[str, int]()
    warming = [frame.limit(WARM_ROWS)] if job.rows > WARM_ROWS else []
    runs = [*warming, frame, frame]
    for number, some in enumerate(runs):
        place = os.path.join(folder, str(number))
        os.makedirs(place)
        begun = time.perf_counter()
        if job.contender == "ddflow":
            figures = spark_ours.batch(some, place, job.query, spark_peers.PARTITIONS)
        else:
            spark_peers.BATCH[job.contender](some, place)
        took.append(time.perf_counter() - begun)
        if number + 1 < len(runs):
            shutil.rmtree(place)
    if job.contender in IDLE:
        _check_rows(job, frame.count())
    return _sample(job, place, "", took[-1], job.rows, [], took[-1], figures)


def _stream(job: Job, spark: Any, folder: str) -> Sample:
    import spark_ours
    import spark_peers

    checkpoint = os.path.join(folder, "checkpoint")
    source = spark_work.feed(job, os.path.join(folder, "feed"))
    schema = spark.read.parquet(source).schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source)
    begun = time.perf_counter()
    if job.contender == "ddflow":
        query = spark_ours.stream(frame, folder, checkpoint, job.query, spark_peers.PARTITIONS)
    else:
        query = spark_peers.STREAMS[job.contender](frame, folder, checkpoint)
    query.awaitTermination()
    total = time.perf_counter() - begun
    progress = [json.loads(each.json) if hasattr(each, "json") else each for each in query.recentProgress]
    _check_rows(job, sum(each["numInputRows"] for each in progress))
    times, counted, seconds = halves(progress, job.skip)
    figures = spark_ours.told(query, job.rows) if job.contender == "ddflow" else {}
    return _sample(job, folder, checkpoint, seconds, counted, times, total, figures)


def halves(progress: Sequence[Any], skip: int) -> tuple[list[int], int, float]:
    """Milliseconds of each batch that had rows; rows and seconds of those that count: all but the first ``skip``."""
    told = [each for each in progress if each["numInputRows"]]
    times = [int(each["durationMs"]["triggerExecution"]) for each in told]
    return times, sum(int(each["numInputRows"]) for each in told[skip:]), sum(times[skip:]) / 1e3


def _check_rows(job: Job, found: int) -> None:
    if found != job.rows:
        raise AssertionError(f"{job.contender} read {found:,} rows of {job.rows:,}")


def _sample(
    job: Job,
    folder: str,
    checkpoint: str,
    seconds: float,
    counted: int,
    times: list[int],
    total: float,
    figures: dict[str, int],
) -> Sample:
    kept = os.path.join(folder if job.contender == "ddflow" else checkpoint, "state")
    answer, live = spark_work.workloads.Answer(0, ""), 0
    if job.contender not in IDLE:
        answer, live = spark_work.answer(os.path.join(folder, "out")), spark_disk.newest(job.contender, kept)
    return Sample(seconds, counted, times, total, 0, 0, memory.on_disk(kept), live, *answer, figures)


if __name__ == "__main__":
    child.answer(sys.argv[1:], run)

"""Running a batch of frames into a state: one epoch, committed, whose outputs are read from its files.

Invariant: an epoch that was committed and is given again, by its number, with the same rows returns what it returned;
with other rows it is refused. Frames are computed anew by every action, so what they hold is compared by a digest that
does not depend on how Spark cuts or orders them. It runs when it is called, unlike a run without state, since it
changes something.

>>> import ddflow as dd
>>> run_into(dd.Flow(), {}, Options("a", None, None, None, "owner", None), None, close=True)
Traceback (most recent call last):
    ...
ddflow.errors.WrongMode: run with close=True: the flow is in epoch mode, where every epoch closes its own time; ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ddflow.engine.flow import Flow
from ddflow.errors import SpecError, WrongMode
from ddflow.partitions.commit import Committed
from spark_bridge.committed import Done, Place, Ran
from spark_bridge.job import Job, Options, checked
from spark_bridge.stats import Batch, log


def run_into(flow: Flow, frames: Mapping[str, DataFrame], options: Options, epoch: int | None, close: bool) -> Ran:
    """Run and commit one epoch of rows of some sources.  ``close``: all times after it, in hold-back mode.

    Raises what `spark_bridge.run` says.
    """
    if close and not flow.holds_back:
        raise WrongMode(
            "run with close=True",
            "the flow is in epoch mode, where every epoch closes its own time",
            "leave close= out",
        )
    columns = {name: checked(flow, name, frame, streaming=False) for name, frame in frames.items()}
    session = session_of(frames)
    job = Job(flow, columns, options, session)
    try:
        packed = job.routed(frames) if frames else None
        before = job.coordinator.committed(epoch=epoch) if epoch is not None else None
        if before is None:
            committed = job.epoch(session, packed, close=close, epoch=epoch)
        else:
            committed = job.again(session, packed, before)
        log(job.name, Batch.of(committed, None))
        return ran(job, session, committed)
    finally:
        job.close()


def ran(job: Job, session: Any, committed: Committed) -> Ran:
    """What an epoch put out, and what became of its rows."""
    figures = committed.figures
    done = Done(
        committed.epoch,
        committed.time,
        committed.frontier,
        committed.counts,
        figures.get("pending", 0),
        committed.rows,
        committed.outputs,
        figures,
        committed.replayed,
    )
    return Ran(job.shapes, done, Place(session, job.store, job.options.trust, job.coordinator.manifest.folder))


def session_of(frames: Mapping[str, DataFrame]) -> Any:
    """The session of some frames; without any, the active one.  Raises `SpecError` where there is none."""
    for frame in frames.values():
        return frame.sparkSession
    session = SparkSession.getActiveSession()
    if session is None:
        raise SpecError(
            "run without rows",
            "no DataFrame is given, and there is no active session",
            "give a DataFrame, which may be empty",
        )
    return session

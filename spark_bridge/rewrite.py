"""Rescale and evolve a state with Spark tasks, if it is too large for the driver alone.

``ddflow.partitions.rescale`` and ``evolve`` define the new version, and Spark runs the tasks of
`ddflow.partitions.rewrite_task`. This process rewrites small states without Spark.

Guarantees: either the new version gives the same answers, or the state is unchanged. Only the driver publishes a
version, so a repeated task leaves garbage at worst. Opening a state never rewrites it.

>>> RewriteTask.__call__.__doc__
'Run the tasks that have these numbers, and yield the result of each task.'
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from ddflow.dataflow.budget import parse_size
from ddflow.engine.engine import Flow
from ddflow.errors import SpecError
from ddflow.partitions.epoch_start import RewriteStart
from ddflow.partitions.evolve import ColumnEvolution, EvolutionResult, evolve as evolve_alone, explain_inexact_value
from ddflow.partitions.receipt import RewriteTaskResult
from ddflow.partitions.rescale import plan_rescale
from ddflow.partitions.rewrite import Rewrite, RewriteResult
from ddflow.partitions.rewrite_task import run_task
from spark_bridge.errors import attach_error_notes, translate_errors
from spark_bridge.job import check_address
from spark_bridge.session import describe_jobs, set_batch_sizes

LARGE: Final = 64 << 20
"""The minimum size in bytes of a state that Spark tasks rewrite."""
_MADE: Final = pa.schema([("made", pa.binary())])


@dataclass(frozen=True)
class RewriteTask:
    """The task that rewrites old partitions.

    ``tasks`` gives, for each task number, the stage and the number of a partition.
    """

    start: RewriteStart
    tasks: tuple[tuple[int, int], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks that have these numbers, and yield the result of each task."""
        with attach_error_notes(), explain_inexact_value("a state"):
            for batch in batches:
                for each in batch.column(0).to_pylist():
                    made = run_task(self.start, *self.tasks[each])
                    yield pa.RecordBatch.from_arrays([pa.array([made.to_json()], pa.binary())], schema=_MADE)


def rescale(
    state: str,
    partitions: int,
    *,
    flow: Flow | None = None,
    session: Any = None,
    memory: str | int | None = None,
    trust: Literal["owner", "group"] = "owner",
) -> RewriteResult:
    """Split or join the partitions of a state, like ``ddflow rescale``.

    Stop the writer of the state first; otherwise it is `Fenced`.

    Parameters
    ----------
    state : str
        A folder that driver and executors see, or ``s3://bucket/prefix``.
    partitions : int
        The new number of partitions, 1 or more.
    flow : Flow, optional
        The state's plan; needed if it has your own functions.
    session : SparkSession, optional
        The Spark session. By default the active session.
    memory : str or int, optional
        The memory of a task, such as "1GB".
    trust : {"owner", "group"}
        See `Flow.open`.

    Returns
    -------
    RewriteResult
        The new version, and the numbers of moved rows and written files.

    Raises
    ------
    SpecError
        Without a session, and for an invalid number of partitions.
    DdflowError
        The errors of `ddflow.partitions.rescale.rescale`.

    Notes
    -----
    O(bytes of the state) time. A Spark job runs if the state's files take 64 MiB or more.
    """
    address, size = check_address(state), parse_size(memory)
    asked = f"rescale {address} to {partitions} partitions"
    opened = Rewrite.open(address, plan_rescale(partitions, flow), trust=trust, memory=size)
    return _run_tasks(opened, asked, size, session or SparkSession.getActiveSession(), "ddflow rescale")


def evolve(
    state: str,
    types: Any = None,
    *,
    drop_outputs: str | Sequence[str] = (),
    drop_inputs: str | Sequence[str] = (),
    flow: Flow | None = None,
    session: Any = None,
    memory: str | int | None = None,
    trust: Literal["owner", "group"] = "owner",
) -> EvolutionResult:
    """Widen columns of a state, or drop outputs and inputs, like ``ddflow evolve``.

    Stop the writer of the state first; otherwise it is `Fenced`.

    Parameters
    ----------
    state : str
        A folder that driver and executors see, or ``s3://bucket/prefix``.
    types, drop_outputs, drop_inputs, flow
        See `ddflow.evolve`.
    session, memory, trust
        See `rescale`.

    Returns
    -------
    EvolutionResult
        The new version, its changed columns and the written files.

    Raises
    ------
    SpecError
        Without a session, unless something is dropped; and if a column cannot be widened to the type.
    DdflowError
        The errors of `ddflow.evolve`.

    Notes
    -----
    O(bytes of the state) time. A Spark job runs if the state's files take 64 MiB or more. Outputs and inputs are
    dropped in this process, without a job.
    """
    address, size = check_address(state), parse_size(memory)
    if drop_outputs or drop_inputs:
        drops: dict[str, Any] = {"drop_outputs": drop_outputs, "drop_inputs": drop_inputs}
        return evolve_alone(address, types, **drops, flow=flow, trust=trust, memory=size)
    change = ColumnEvolution(types, flow)
    opened = Rewrite.open(address, change.plan_new_state, trust=trust, memory=size)
    with explain_inexact_value(address):
        done = _run_tasks(
            opened, f"evolve {address}", size, session or SparkSession.getActiveSession(), "ddflow evolve"
        )
    return change.build_result(done)


def _run_tasks(
    opened: AbstractContextManager[Rewrite], asked: str, size: int | None, session: Any, instead: str
) -> RewriteResult:
    """Run the tasks and publish the result. If the state is large, the tasks run as a Spark job.

    ``asked``: the request, for errors and the web UI. ``instead``: the command without Spark, for errors.
    """
    if session is None:
        raise SpecError(asked, "there is no active session", f"pass session=, or use {instead}")
    with opened as rewrite, set_batch_sizes(session, size), describe_jobs(session, f"ddflow: {asked}"):
        n = len(rewrite.tasks)
        if not n or sum(entry.length for entry in rewrite.store.list_blobs()) < LARGE:
            rewrite.run_tasks()
        else:
            task = RewriteTask(rewrite.start, tuple(rewrite.tasks))
            with translate_errors():
                collected = session.range(0, n, 1, n).mapInArrow(task, "made binary").collect()
            rewrite.made += [RewriteTaskResult.from_json(bytes(each), "what a task made") for (each,) in collected]
        return rewrite.finish()

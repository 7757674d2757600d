"""Call a function that kills a driver at one of several named points of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ddflow.partitions.commit import EpochDriver
from ddflow.storage.manifest_log import ManifestLog
from spark_bridge.job import Job
from spark_bridge.streams import BatchFeeder

POINTS = ("before tasks", "after tasks", "after publish", "after outputs", "before Spark's commit")


class Killed(RuntimeError):
    """The exception that is raised instead of a kill, if the process must survive."""


@contextmanager
def dies(point: str, batch: int, die: Callable[[], Any]) -> Iterator[None]:
    """Make a driver die at a point of a batch.

    For the point "", it never dies. Batch -1 has no rows and closes all times.

    While the outputs of a batch become visible or are passed to a function, the driver is still inside `BatchFeeder`.
    When Spark makes its own commit of a batch, the driver has already left `BatchFeeder`.
    """
    now = [-1]
    feeder, tasks, finished, commit = (
        BatchFeeder.__call__,
        Job._collect_receipts,
        EpochDriver.finish,
        ManifestLog.commit,
    )

    def at(here: str) -> None:
        if here == point and now[0] == batch:
            die()

    def fed(self: BatchFeeder, packed: Any, number: int) -> None:
        now[0] = number
        feeder(self, packed, number)
        at("before Spark's commit")
        now[0] = -1

    def receipts(self: Job, *given: Any) -> Any:
        at("before tasks")
        return tasks(self, *given)

    def finishing(self: EpochDriver, *given: Any, **named: Any) -> Any:
        at("after tasks")
        committed = finished(self, *given, **named)
        at("after outputs")
        return committed

    def committing(self: ManifestLog, *given: Any, **named: Any) -> Any:
        manifest = commit(self, *given, **named)
        at("after publish")
        return manifest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchFeeder, "__call__", fed)
        patch.setattr(Job, "_collect_receipts", receipts)
        patch.setattr(EpochDriver, "finish", finishing)
        patch.setattr(ManifestLog, "commit", committing)
        yield

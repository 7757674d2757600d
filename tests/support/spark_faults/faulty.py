"""Wrap a task body so that one attempt fails with an error, or kills its worker or the complete executor.

The attempt fails after the body has written its files and before the driver gets the receipt. A file in a folder
records the failure, so only a single attempt fails. Every attempt leaves a file in this folder. The file's name has the
stage (-1 for the routing of rows), the partition and the attempt.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext

from ddflow.partitions import epoch_start

DEATHS = ("fails", "worker", "executor")


@dataclass(frozen=True)
class Faulty:
    """A wrapper that runs ``body`` and lets it die by ``death`` at ``stage``. All processes can read ``folder``."""

    body: Any
    folder: str
    death: str
    stage: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage, context = getattr(self.body, "stage", -1), TaskContext.get()
        assert context is not None
        name = f"{stage}_{context.partitionId()}_{context.attemptNumber()}_{os.getppid()}_{uuid4().hex}"
        (Path(self.folder) / name).touch()
        for batch in self.body(batches):
            if stage == self.stage and first(Path(self.folder) / "died"):
                (Path(self.folder) / "died").write_text(str(os.getppid()))
                die(self.death)
            yield batch


@dataclass(frozen=True)
class Elsewhere:
    """A wrapper of ``body``. The body runs as if on a machine where the state is in another folder, ``there``."""

    body: Any
    there: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = epoch_start.open_store
        epoch_start.open_store = lambda address, **more: opened(self.there, **more)
        try:
            yield from self.body(batches)
        finally:
            epoch_start.open_store = opened


def first(path: Path) -> bool:
    """Create the file. Return True if the file did not exist before."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die(death: str) -> None:
    if death == "fails":
        raise RuntimeError("this attempt fails")
    if death == "executor":
        os.kill(executor(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def executor() -> int:
    """Return the id of the executor's process.

    The executor's process is the parent of the daemon that forks the workers.
    """
    pid = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes(), "that is no executor"
    return pid


def attempts(folder: str) -> list[tuple[int, int]]:
    """Return the stage and partition of every attempt."""
    names = [name.split("_") for name in os.listdir(folder) if "_" in name]
    return sorted((int(stage), int(number)) for stage, number, *_ in names)


def lost(folder: str) -> set[int]:
    """Return the stages that had tasks on the dead executor.

    Tasks on the same executor have the same daemon of Python workers.
    """
    dead = Path(folder, "died").read_text()
    names = [name.split("_") for name in os.listdir(folder) if "_" in name]
    return {int(stage) for stage, _, _, daemon, _ in names if daemon == dead}

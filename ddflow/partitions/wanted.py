"""What a driver of many tasks was asked for, and which states that fits.

Invariant: every mistake is an error that names the option or the difference, before anything is made. A
plan may have more than a state: what that is, the first epoch with it makes (``growing``).

>>> Wanted(partitions=0)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: partitions=0: that is not possible; give a whole number from 1 to 65536
"""

from dataclasses import dataclass
from os import PathLike
from shlex import quote
from typing import Literal

from ddflow.connectors.parquet.sink import check_target
from ddflow.dataflow.budget import LEAST, shown_size
from ddflow.engine.epoch_log import KEPT
from ddflow.errors import Option, SpecError, StateRefused
from ddflow.partitions.epoch_start import own
from ddflow.plan.rebuild import step_times
from ddflow.storage.manifest import PARTITIONS, Manifest
from ddflow.time import CLOSED, INT64


@dataclass(frozen=True)
class Wanted:
    """The options of opening a state: see `EpochDriver.open`.  Raises `SpecError`."""

    partitions: int | None = None
    default_partitions: int = 1
    outputs: str | PathLike[str] | None = None
    trust: Literal["owner", "group"] = "owner"
    keep: int = KEPT
    retain: int | None = None
    memory: int | None = None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("partitions", 1, PARTITIONS),
            ("default_partitions", 1, PARTITIONS),
            ("keep", 1, 1 << 16),
            ("retain", 0, CLOSED),
        ):
            given = getattr(self, name)
            number = isinstance(given, int) and not isinstance(given, bool)
            if not (number and least <= given <= most) and (given is not None or name not in ("partitions", "retain")):
                raise SpecError(
                    Option(name, given), "that is not possible", f"give a whole number from {least} to {most}"
                )
        check_target(self.outputs)  # before anything is made
        if self.memory is not None and own(self.memory) < LEAST:
            raise SpecError(
                f"memory={shown_size(self.memory)}",
                "that is too small for a task to work in",
                f"give {shown_size(2 * LEAST)} or more",
            )

    def fits(self, manifest: Manifest, where: str) -> None:
        """Raise `SpecError` for another number of partitions than it has, `StateRefused` for days as times of steps."""
        if not manifest.inventories:  # it holds nothing yet
            return
        if (kind := step_times(manifest.plan, where)) != INT64:
            raise StateRefused(
                f"open {where} on Spark",
                f"the times of its steps are {kind}, and those of Spark's epochs are whole numbers",
                "go on with it in one process; spark_bridge.read reads it as it is",
            )
        if self.partitions not in (None, manifest.partitions):
            found = f"it has {manifest.partitions}, and opening a state does not rewrite it"
            other = f"ddflow rescale {quote(where)} --partitions {self.partitions}, or on Spark spark_bridge.rescale"
            remedy = f"leave it out, or change it first: {other}"
            raise SpecError(f"open {where} with partitions={self.partitions}", found, remedy)

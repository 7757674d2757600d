"""What the demo asks of a real input: events, the plan to run over them, and an outside witness that judges the diffs.

Invariant: a feed's slices end where a time ends and rise, so that after a slice the frontier can be advanced to its
``closes`` and every update of its times is out, and can be judged at once and let go. The witness must be another
program's own word on the same times (git's raw log line, dpkg's status file), never something worked out by the engine
it is to judge. A feed knows nothing of Spark, of files written, or of how results are shown.

>>> events = pa.record_batch({"path": ["a"], "commit": [1]})
>>> Slice(events, closes=2, said={}).events.num_rows
1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

import ddflow as dd
from ddflow.demo.tally import Checks


class Slice(NamedTuple):
    """Some events that end where a time ends, with what the witness says of the same times."""

    events: pa.RecordBatch
    """The upserts, in the source's schema."""
    closes: int
    """The frontier after them: the times of later slices are at or above it."""
    said: Mapping[str, pa.Table]
    """The updates that the witness names for these times, by what they are."""


class Feed(Protocol):
    """A real input with a plan and a witness.  ``slices`` is read once; the rest comes after it."""

    name: str
    """One word; the folder its files go to."""
    title: str
    """What it is, for a person."""
    source: str
    """The name of the plan's source, and of the output with its diffs."""
    key: str
    """The column that identifies a row."""
    group: str
    """The column that the plan counts by; the output ``by_<group>`` holds the counts."""

    time: str
    """What its times are, for a person."""

    def plan(self) -> dd.Flow:
        """The plan: one source in hold-back mode, and its outputs."""

    def slices(self) -> Iterator[Slice]:
        """The events in slices of rising times."""

    def judge(self, part: Slice, out: Mapping[str, pa.Table], checks: Checks) -> None:
        """Compare the updates of a slice's times with what the witness says of them."""

    def conclude(self, final: Mapping[str, pa.Table], verdicts: Mapping[str, int], checks: Checks) -> None:
        """Compare the final collections (``_diff`` is multiplicity) and the verdicts with the witness's last word."""

    def extras(self) -> Mapping[str, pa.Table]:
        """Tables worth keeping beside the diffs, by file name."""

    def notes(self) -> list[str]:
        """What a reader of the checks should know beside them; known after ``conclude``."""

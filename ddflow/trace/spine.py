"""Keep the runs of an arrangement few, by merges that new versions pay for.

A spine has runs, oldest first, and merges in the place of their inputs. Each new version pays for `EFFORT` versions of
each merge. Newer runs queue up behind a merge, and may be merged with each other meanwhile. A piece of a merge is a
range of identities, so it has all versions of a key.

Guarantees: the times of neighbours meet, and together they hold every version that a read at or after ``since`` needs.
A step merges at most the versions it has paid for, or one `PIECE` if that is more; merges whose pieces are due in one
step take turns. `choose_merge_start` decides by sizes alone, and `Spine.advance_merges` acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise

from ddflow.metrics import LOG
from ddflow.time import NEVER, BatchDescription
from ddflow.trace.batch import BatchRange, BatchSlots, Run
from ddflow.trace.index import Index
from ddflow.trace.merge import RunMerge, Target, TombstoneExpiry

FAN = 32
"""The number of runs of similar size that are merged into one, in memory."""
EFFORT = 8
"""The versions that a merge processes for each new version."""
PIECE, MOST = 1 << 14, 1 << 19
"""The least versions of a merge's piece, because smaller pieces cost mostly overhead, and the most."""
GARBAGE = 2
"""All runs are merged when they have this many times the versions that are needed."""


def choose_merge_start(sizes: Sequence[int], needed: int | None, fan: int) -> int | None:
    """Choose the first of the newest runs to merge into one, or None.  Pure; O(runs).

    All runs are merged if too many of their versions are garbage. Otherwise the newest runs are merged if ``fan`` of
    them are of about one size, so that the largest is a small part of their sum. So a version is copied about once for
    each power of ``fan``.

    ``sizes``: versions a run, oldest first.  ``needed``: about the versions that a merge of all would leave; None if
    that merge is not allowed.

    >>> choose_merge_start([1000, 10, 10], 900, 32) is None
    True
    >>> choose_merge_start([1000] + [10] * 32, 1100, 32)
    1
    >>> choose_merge_start([1000, 1100], 900, 32)
    0
    >>> choose_merge_start([8000] + [1] * 31, 8000, 32) is None  # many small ones and a large one are not of one size
    True
    """
    if needed is not None and len(sizes) > 1 and sum(sizes) > GARBAGE * needed + 64:
        return 0
    total = largest = 0
    for i in range(len(sizes) - 1, -1, -1):
        total, largest = total + sizes[i], max(largest, sizes[i])
        if len(sizes) - i >= fan and largest * max(fan // 4, 2) <= total:
            return i
    return None


class Spine:
    """The runs and merges of one layer of an arrangement.

    ``fan``: the number of runs of similar size that are merged into one.  ``keeps``: whether deletions must stay,
    unless ``lapse`` lets them expire.  ``copied``: the number of versions that merges wrote.  ``most``: the maximum
    versions of a piece.
    """

    def __init__(self, fan: int = FAN, keeps: bool = False) -> None:
        self.items: list[Run | RunMerge] = []
        self.fan, self.keeps, self.copied, self.most = fan, keeps, 0, MOST
        self.lapse: TombstoneExpiry | None = None
        # Runs at the last plan, and new versions since: planning again for a few more of either is not worth it.
        self.planned = self.fresh = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def version_count(self) -> int:
        """The number of versions."""
        return sum(map(len, self.items))

    @property
    def merges(self) -> list[RunMerge]:
        """The merges in progress."""
        return [item for item in self.items if isinstance(item, RunMerge)]

    @property
    def remaining_versions(self) -> int:
        """The number of versions that merges have still to process."""
        return sum(merge.remaining_versions for merge in self.merges)

    @property
    def runs(self) -> list[Run]:
        """All runs; older versions of a key come first.  A merge has its output and its remaining inputs."""
        return [
            run for item in self.items for run in ([item] if isinstance(item, Run) else [item.output, *item.inputs])
        ]

    @property
    def parts(self) -> list[BatchRange]:
        """All versions; older versions of a key come first."""
        return [part for item in self.items for part in item.parts]

    @property
    def upper(self) -> int:
        """The time after the last written one; NEVER if nothing was written."""
        if not self.items:
            return NEVER
        item = self.items[-1]
        return (item if isinstance(item, Run) else item.output).description.upper

    def freeze(self) -> Spine:
        """Return a copy of the current runs, with the runs of merges.  O(parts)."""
        out = copy(self)
        out.items = [run.freeze() for run in self.runs]
        return out

    def append(self, run: Run) -> None:
        """Append the newest run.  O(1)."""
        self.items.append(run)
        self.fresh += run.size

    def plan_merges(self, needed: int, alone: bool, target: Target | None = None) -> None:
        """Start merges as long as `choose_merge_start` finds some.  O(runs).

        ``needed``: about the versions that a merge of all would leave.  ``alone``: whether no other layer has older
        versions. ``target``: where merged runs go, None for memory.
        """
        if len(self.items) - self.planned < self.fan // 8 and self.fresh * 16 <= needed:
            return
        while True:
            self.planned, self.fresh = len(self.items), 0
            start, runs = 0, list[Run]()
            for at, item in enumerate(self.items):
                if isinstance(item, Run):
                    runs.append(item)
                else:
                    start, runs = at + 1, []
            first = choose_merge_start([run.size for run in runs], needed if start == 0 else None, self.fan)
            if first is None:
                return
            self.items[start + first :] = [RunMerge(runs[first:], alone and start + first == 0, target)]

    def advance_merges(
        self,
        paid: int | None,
        slots: BatchSlots,
        index: Index | None,
        since: int,
        settled: bool,
        files: bool | None = None,
    ) -> None:
        """Advance the merges by the versions that were paid for, ``EFFORT`` for each; None finishes the merges.

        ``files``: True for the merges that write files, where the disk may refuse; False for the others; None for all.
        The other parameters are as in `RunMerge.advance`.  O(versions paid for + `PIECE`).
        """
        chosen = []
        for at, item in enumerate(self.items):
            if isinstance(item, RunMerge) and (files is None or files == (item.target is not None)):
                chosen.append((at, item))
        if not chosen:
            return
        left = (
            sum(item.remaining_versions for _, item in chosen)
            if paid is None
            else max(PIECE, EFFORT * paid * len(chosen))
        )
        for at, merge in chosen:
            owed = merge.remaining_versions
            merge.credit = owed if paid is None else merge.credit + EFFORT * paid
            while owed and min(merge.credit, left) >= min(PIECE, owed):
                rows = min(merge.credit, left, self.most)
                done, copied = merge.advance(rows, slots, index, since, settled, self.keeps, self.lapse)
                merge.credit, left = merge.credit - done, left - done
                self.copied += copied
                owed = merge.remaining_versions
            if not owed:
                self.items[at] = merge.output
                where = "memory" if merge.target is None else "a file"
                LOG.debug("merged runs into one of %d versions in %s", merge.output.size, where)

    def merge_unwritten_runs(self, slots: BatchSlots, index: Index, since: int, settled: bool) -> None:
        """Merge the newest runs without files into one, so that a commit writes one file.  O(their versions).

        Merges at most `PIECE` versions.
        """
        at, rows = len(self.items), 0
        while at and isinstance(run := self.items[at - 1], Run) and (rows := rows + run.size) <= PIECE:
            if any(part.slot in slots.files or slots[part.slot].mapped is not None for part in run.parts):
                break
            at -= 1
        runs = [item for item in self.items[at:] if isinstance(item, Run)]
        if len(runs) > 1:
            self.items[at:] = [merge := RunMerge(runs, False)]
            while merge.remaining_versions:
                self.copied += merge.advance(PIECE, slots, index, since, settled, self.keeps)[1]
            self.items[at] = merge.output
            self.planned = min(self.planned, len(self.items))

    def list_merge_inputs(self) -> list[Run]:
        """Return all runs as the inputs of one merge.  O(runs).

        Merges in progress end, and each output becomes a run too.
        """
        runs = list[Run]()
        for item in self.items:
            if isinstance(item, RunMerge):
                # The output and the remaining inputs share no identity, so the output may have an empty time range.
                lower, _, since = item.output.description
                runs += [Run(BatchDescription(lower, lower, since), item.output.parts), *item.inputs]
            else:
                runs.append(item)
        return runs

    def _check_invariants(self, slots: BatchSlots) -> None:
        """Assert the invariant."""
        descriptions = []
        for item in self.items:
            run = item.output if isinstance(item, RunMerge) else item
            descriptions.append(run.description)
            for part in item.parts:
                batch, (lower, upper, _) = slots[part.slot], run.description
                assert 0 <= part.begin < part.end <= len(batch)
                # Every time is within the description.
                assert int(batch.time.min()) >= lower and int(batch.time.max()) < upper, run.description
            for each in [run, *(item.inputs if isinstance(item, RunMerge) else [])]:
                # The parts of a run ascend and share no identity.
                ends = [(int(slots[p.slot].high[p.begin]), int(slots[p.slot].high[p.end - 1])) for p in each.parts]
                assert all(a[1] < b[0] for a, b in pairwise(ends)), ends
        # Neighbours meet, so each time is covered once.
        assert all(older.is_followed_by(newer) for older, newer in pairwise(descriptions)), descriptions

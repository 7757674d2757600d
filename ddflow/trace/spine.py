"""Keep the number of an arrangement's runs small, by merges that new versions pay for.

A spine is a list of runs, oldest first. A merge replaces its inputs in the list. Each new version pays for `EFFORT`
versions of each merge. During a merge, newer runs are appended, and these newer runs can be merged with each other. A
piece of a merge is a range of identities, so it has all versions of a key.

Guarantees: each run begins at the time where the previous run ends. The runs hold every version that a read at or after
``since`` needs. A step merges at most as many versions as it has paid for, or one `PIECE` if this is more. If several
merges are in progress in one step, they take turns. `choose_merge_start` decides only by the sizes of runs which runs
are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from operator import attrgetter

from ddflow.metrics import LOG
from ddflow.time import NEVER, BatchDescription
from ddflow.trace.batch import BatchRange, BatchSlots, Run
from ddflow.trace.index import Index
from ddflow.trace.merge import RunMerge, Target, TombstoneExpiry

FAN = 32
"""The number of runs of similar size in memory that are merged into one run."""
EFFORT = 8
"""The number of versions that a merge processes for each new version."""
PIECE, MOST = 1 << 14, 1 << 19
"""The minimum and maximum number of versions in a piece of a merge.

If a piece were smaller than the minimum, most of its cost would be overhead.
"""
GARBAGE = 2
"""All runs are merged when their number of versions exceeds this factor times the number of needed versions."""


def choose_merge_start(sizes: Sequence[int], needed: int | None, fan: int, tail: int = 0) -> int | None:
    """Choose the first run to merge.

    The chosen run and all later runs are merged into one run. Return None to merge nothing. Pure; O(runs). All runs are
    merged if too many of their versions are garbage. If few versions are garbage, the newest runs are merged as soon as
    ``fan`` of them have about the same size, so that the largest run is a small part of their sum. Therefore a version
    is copied about once for each power of ``fan``.

    ``sizes``: the number of versions of each run, oldest first.  ``needed``: the approximate number of versions that a
    merge of all runs would leave; None if that merge is not allowed.  ``tail``: if the newest runs have fewer versions
    than this together, they are merged only as soon as there are `FAN` of them.  With a tail, no merge is chosen
    that a merge of all runs would soon repeat.

    >>> choose_merge_start([1000, 10, 10], 900, 32) is None
    True
    >>> choose_merge_start([1000] + [10] * 32, 1100, 32)
    1
    >>> choose_merge_start([1000, 1100], 900, 32)
    0
    >>> choose_merge_start([8000] + [1] * 31, 8000, 32) is None  # a large run and many small runs are not of one size
    True
    """
    whole, most = sum(sizes), None if needed is None else GARBAGE * needed + 64
    if most is not None and len(sizes) > 1 and whole > most:
        return 0
    total = largest = 0
    for i in range(len(sizes) - 1, -1, -1):
        total, largest = total + sizes[i], max(largest, sizes[i])
        if len(sizes) - i >= (fan if total >= tail else FAN) and largest * max(fan // 4, 2) <= total:
            # If a merge of all runs comes before as many versions again, a merge of these runs would be useless.
            return None if tail and most is not None and whole + total > most and i > 0 else i
    return None


class Spine:
    """The runs and merges of one layer of an arrangement.

    ``fan``: the number of runs of similar size that are merged into one.  ``keeps``: whether deletions must stay,
    unless ``lapse`` lets them expire.  ``copied``: the number of versions that merges wrote.  ``most``: the maximum
    number of versions in a piece of a merge.  ``tail``: see `choose_merge_start`.
    """

    def __init__(self, fan: int = FAN, keeps: bool = False, tail: int = 0) -> None:
        self.items: list[Run | RunMerge] = []
        # The number of cancelled differences that reads passed since the last merge of all runs, and the part of them
        # that has not paid for merges.
        self.cancelled = self.unpaid = 0
        self.fan, self.keeps, self.tail, self.copied, self.most = fan, keeps, tail, 0, MOST
        self.lapse: TombstoneExpiry | None = None
        # The number of runs at the last plan, and the number of new versions since then. If there are only a few new
        # runs and versions, no new plan is made.
        self.planned = self.fresh = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def version_count(self) -> int:
        """The number of versions in all runs and merges."""
        return sum(map(len, self.items))

    @property
    def oldest_size(self) -> int:
        """The number of versions in the oldest run or merge, or 0.

        If reads passed more cancelled differences than there are versions, the result is 0: all runs are to be merged.
        """
        cancelled = self.cancelled
        return len(self.items[0]) if self.items and (not cancelled or cancelled <= self.version_count) else 0

    def record_cancelled_reads(self, differences: int) -> None:
        """Record the number of cancelled differences that a read passed. They pay for merges, as new versions do."""
        self.cancelled, self.unpaid = self.cancelled + differences, self.unpaid + differences

    @property
    def merges(self) -> list[RunMerge]:
        """The merges in progress."""
        return [item for item in self.items if isinstance(item, RunMerge)]

    @property
    def remaining_versions(self) -> int:
        """The number of versions that the merges in progress have not processed."""
        return sum(merge.remaining_versions for merge in self.merges)

    @property
    def runs(self) -> list[Run]:
        """All runs, in an order in which older versions of a key come first.

        The runs of a merge are its output and its remaining inputs.
        """
        return [
            run for item in self.items for run in ([item] if isinstance(item, Run) else [item.output, *item.inputs])
        ]

    @property
    def parts(self) -> list[BatchRange]:
        """All versions, in an order in which older versions of a key come first."""
        return [part for item in self.items for part in item.parts]

    @property
    def upper(self) -> int:
        """The end of the newest run's time range, or NEVER if there is no run."""
        return self.items[-1].description.upper if self.items else NEVER

    def freeze(self) -> Spine:
        """Return a copy of the current runs, including the inputs and outputs of merges.  O(parts)."""
        out = copy(self)
        out.items = [run.freeze() for run in self.runs]
        return out

    def append(self, run: Run) -> None:
        """Append the newest run.  O(1)."""
        self.items.append(run)
        self.fresh += run.size

    def has_enough_new_runs(self, needed: int) -> bool:
        """Return whether enough runs or versions are new for a new plan. ``needed``: as for `plan_merges`."""
        return len(self.items) - self.planned >= self.fan // 8 or self.fresh * 16 > needed

    def plan_merges(self, needed: int, alone: bool, target: Target | None = None) -> None:
        """Start merges as long as `choose_merge_start` chooses runs.  O(runs).

        ``needed``: the approximate number of versions that a merge of all runs would leave.  ``alone``: whether no
        other layer has older versions.  ``target``: the function that stores merged runs, None for memory.
        """
        while True:
            self.planned, self.fresh = len(self.items), 0
            start, runs = 0, list[Run]()
            for at, item in enumerate(self.items):
                if isinstance(item, Run):
                    runs.append(item)
                else:
                    start, runs = at + 1, []
            first = choose_merge_start(
                list(map(attrgetter("size"), runs)), needed if start == 0 else None, self.fan, self.tail
            )
            if first is None:
                return
            self.cancelled = self.cancelled if start + first else 0
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
        """Advance the merges by the number of versions that are paid for. O(versions paid for + `PIECE`).

        ``paid``: the number of new versions; each pays for ``EFFORT`` versions of each merge. If ``paid`` is None, the
        merges are finished. ``files``: True to advance only merges to files, False to advance only merges in memory,
        None to advance all merges. A full disk can stop merges to files. See `RunMerge.advance` for the other
        parameters.
        """
        chosen = []
        for at, item in enumerate(self.items):
            if isinstance(item, RunMerge) and (files is None or files == (item.target is not None)):
                chosen.append((at, item))
        if not chosen:
            return
        if paid is not None:
            paid, self.unpaid = paid + self.unpaid // EFFORT, self.unpaid % EFFORT
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

    def merge_unwritten_runs(self, slots: BatchSlots, index: Index | None, since: int, settled: bool) -> None:
        """Merge the newest runs that have no files into one run, so that a commit writes one file. O(versions merged).

        At most `PIECE` versions are merged.
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

        The output and the remaining inputs of each merge in progress become separate runs.
        """
        runs = list[Run]()
        for item in self.items:
            if isinstance(item, RunMerge):
                # No identity is in both the output and the remaining inputs, so the output is allowed to have an empty
                # time range.
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
                # Every version's time is within the time range of its run.
                assert int(batch.time.min()) >= lower and int(batch.time.max()) < upper, run.description
            for each in [run, *(item.inputs if isinstance(item, RunMerge) else [])]:
                # The parts of a run ascend, and no identity is in two parts.
                ends = [(int(slots[p.slot].high[p.begin]), int(slots[p.slot].high[p.end - 1])) for p in each.parts]
                assert all(a[1] < b[0] for a, b in pairwise(ends)), ends
        # Each run begins where the previous run ends, so each time is covered once.
        assert all(older.is_followed_by(newer) for older, newer in pairwise(descriptions)), descriptions

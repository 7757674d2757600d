"""The spine: the runs of one arrangement, oldest first, few and growing, and the merges that keep them so.

Invariant: the descriptions of neighbours meet, and together they hold every version that a read at or after ``since``
needs. No step pays for a whole merge. So a merge is paid for as versions come in, ``EFFORT`` for each, piece by piece
in the place of its inputs, and newer runs queue up behind it and may be merged among themselves meanwhile. A step goes
through no more versions than all merges were paid for by it, or through one ``PIECE``, where that is more: merges whose
pieces fall due in the same step take turns. A piece is a range of identities, so all versions of a key are in one.
``choose_merge_start`` decides with sizes alone; `Spine.advance_merges` acts.

>>> choose_merge_start([1000, 10, 10], 900, 32) is None
True
>>> choose_merge_start([1000] + [10] * 32, 1100, 32)
1
>>> choose_merge_start([1000, 1100], 900, 32)
0
>>> choose_merge_start([8000] + [1] * 31, 8000, 32) is None  # many small ones and a large one are not of one size
True
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
"""How many runs of about one size are merged into one, in memory."""
EFFORT = 8
"""Versions that a merge goes through for each version that comes in."""
PIECE, MOST = 1 << 14, 1 << 19
"""The least versions that a merge goes through at once, since less would be spent on the way there, and the most."""
GARBAGE = 2
"""All is merged when there are so many times the versions needed."""


def choose_merge_start(sizes: Sequence[int], needed: int | None, fan: int) -> int | None:
    """Choose the first of the newest runs that should be merged into one, or None.

    ``sizes``: versions a run, oldest first.  ``needed``: about the versions that a merge of all would leave; None if
    that merge is not allowed.  All are merged if too much is garbage. Otherwise the newest ones are merged if there are
    ``fan`` of about one size (the largest is a small part of all). So a version is copied about once for each power of
    ``fan``. Pure; O(runs).
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
    """``fan``: how many runs of about one size make a larger one.  ``keeps``: whether deletions must stay, whatever is
    older, but for those of ``lapse``.  ``copied``: versions that merges wrote.  ``most``: versions that a merge goes
    through at once."""

    def __init__(self, fan: int = FAN, keeps: bool = False) -> None:
        self.items: list[Run | RunMerge] = []
        self.fan, self.keeps, self.copied, self.most = fan, keeps, 0, MOST
        self.lapse: TombstoneExpiry | None = None
        # Runs when a plan was last made, and versions since: a few more of either change nothing.
        self.planned = self.fresh = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def version_count(self) -> int:
        """How many versions are held."""
        return sum(map(len, self.items))

    @property
    def merges(self) -> list[RunMerge]:
        """Those in progress."""
        return [item for item in self.items if isinstance(item, RunMerge)]

    @property
    def remaining_versions(self) -> int:
        """Versions that merges have still to go through."""
        return sum(merge.remaining_versions for merge in self.merges)

    @property
    def runs(self) -> list[Run]:
        """All runs, older versions of a key before newer ones; a merge has its output and what it has still to eat."""
        return [
            run for item in self.items for run in ([item] if isinstance(item, Run) else [item.output, *item.inputs])
        ]

    @property
    def parts(self) -> list[BatchRange]:
        """All versions, older ones of a key before newer ones."""
        return [part for item in self.items for part in item.parts]

    @property
    def upper(self) -> int:
        """The time from which on nothing was written yet; NEVER where nothing was."""
        if not self.items:
            return NEVER
        item = self.items[-1]
        return (item if isinstance(item, Run) else item.output).description.upper

    def freeze(self) -> Spine:
        """Return the runs there are now, those of merges too.  O(parts)."""
        out = copy(self)
        out.items = [run.freeze() for run in self.runs]
        return out

    def append(self, run: Run) -> None:
        """Take in the newest run.  O(1)."""
        self.items.append(run)
        self.fresh += run.size

    def plan_merges(self, needed: int, alone: bool, target: Target | None = None) -> None:
        """Begin merges while `choose_merge_start` says so.

        ``needed``: versions that a merge of all would leave, about.  ``alone``: nothing older is held elsewhere.
        ``target``: where merged runs are to live, None for memory.  O(runs).
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
        """Go on with the merges by what was paid, ``EFFORT`` for each version; None finishes them.

        ``files``: only with those that write files, and may be refused by the disk, or only with the others; None: with
        all.  The rest as in `Merge.advance`.  O(versions paid for + `PIECE`).
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
        """Merge the newest runs that are in no file yet into one, which becomes one file; `PIECE` versions at most.

        O(their versions).
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
        """All runs, as the inputs of one merge: those under way end where they are, and what they made is a run too.

        O(runs).
        """
        runs = list[Run]()
        for item in self.items:
            if isinstance(item, RunMerge):
                # What was made has no identity in common with what was not, so it may stand for no time of its own.
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
                # Every time is one the description speaks of.
                assert int(batch.time.min()) >= lower and int(batch.time.max()) < upper, run.description
            for each in [run, *(item.inputs if isinstance(item, RunMerge) else [])]:
                # The parts of a run ascend, and share no identity.
                ends = [(int(slots[p.slot].high[p.begin]), int(slots[p.slot].high[p.end - 1])) for p in each.parts]
                assert all(a[1] < b[0] for a, b in pairwise(ends)), ends
        # Neighbours meet: no time is covered twice or not at all.
        assert all(older.is_followed_by(newer) for older, newer in pairwise(descriptions)), descriptions

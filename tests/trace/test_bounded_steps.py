"""Test that no step pays for a large merge, by counting the versions that merges visit, on 10^5 to 10^6 keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import mid_test

import ddflow as dd
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.merge import RunMerge
from ddflow.trace.spine import EFFORT, PIECE, Spine

CHANCE = 1.3
"""A piece is a range of identities, which are random, and the rest of a merge is not left for a piece of its own."""


class Work:
    """``gone``: versions gone through in this step.  ``most``: in any.  ``allowed``: by what was paid in this step.

    ``large``: whether it is a step of very many events.  ``merges``: the most versions that a merge had.  ``begun``:
    flushes that found a merge under way.
    """

    def __init__(self) -> None:
        self.gone = self.most = self.allowed = self.merges = self.begun = 0
        self.large = False


@contextmanager
def counted() -> Iterator[Work]:
    """Counts what merges do meanwhile, in memory and in files."""
    seen, advance, work, loose = Work(), RunMerge.advance, Spine.advance_merges, Spine.list_merge_inputs

    def advanced(self: RunMerge, *given: Any) -> tuple[int, int]:
        seen.merges = max(seen.merges, len(self))
        done, copied = advance(self, *given)
        seen.gone += done
        return done, copied

    def worked(self: Spine, paid: int | None, *given: Any, **named: Any) -> None:
        assert paid is not None or seen.large, "a small step finishes all merges"
        if self.merges:
            seen.allowed += self.remaining_versions if paid is None else max(PIECE, EFFORT * paid * len(self.merges))
        work(self, paid, *given, **named)

    def loosened(self: Spine) -> Any:
        seen.begun += bool(self.merges)
        return loose(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunMerge, "advance", advanced)
        patch.setattr(Spine, "advance_merges", worked)
        patch.setattr(Spine, "list_merge_inputs", loosened)
        yield seen


def events(ids: Any, rng: np.random.Generator) -> pa.Table:
    return pa.table({"id": ids, "city": rng.integers(0, 1 << 15, ids.size), "amount": rng.integers(0, 99, ids.size)})


def plan() -> dd.Flow:
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": int, "city": int, "amount": int}, dd.Upsert(key="id"))
    flow.output("orders", orders)
    flow.output("by_city", orders.count("city"))
    return flow


def figures(engine: dd.Engine) -> tuple[int, int, int]:
    """How many keys, and what they add up to."""
    rows = engine.read("orders")
    return (
        rows.num_rows,
        int(np.sum(rows["amount"].to_numpy())),
        int(np.sum(engine.read("by_city")["count"].to_numpy())),
    )


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("keys", "options"),
    [(1_000_000, {}), (100_000, {"retain": 1 << 40}), (200_000, {"memory": 24 << 20})],
    ids=["in memory", "with history", "in files"],
)
def test_no_small_step_goes_through_more_than_a_piece_of_a_merge(
    keys: int, options: dict[str, Any], tmp_path: Path
) -> None:
    rng, held = np.random.default_rng(7), np.full(keys + keys // 8, -1)
    with plan().open(**options, **({"spill": tmp_path} if "memory" in options else {})) as engine:
        time = 0

        def step(ids: Any) -> None:
            nonlocal time
            table, time = events(ids, rng), time + 1
            engine.step({"orders": table}, time)
            held[ids] = table["amount"].to_numpy()

        everyone = rng.permutation(keys)
        for begin in range(0, keys, 50_000):
            step(everyone[begin : begin + 50_000])
        with counted() as seen:
            for number in range(1_500):
                size = int(rng.choice([1, 1, 2, 30, 400]))
                # So many keys again that most of what is held is out of date, and a merge of all is due.
                if number in (200, 400):
                    size = keys // 2
                seen.gone, seen.allowed, seen.large = 0, 0, size > 1000
                step(rng.integers(0, keys + keys // 8, size))
                assert seen.gone <= CHANCE * seen.allowed, f"step {number} of {size} events"
                seen.most = max(seen.most, 0 if seen.large else seen.gone)
        assert seen.merges >= keys // 2 and seen.most > PIECE // 2
        held = held[held >= 0]
        assert figures(engine) == (held.size, held.sum(), held.size)
        if "memory" in options:
            assert seen.begun, "no flush began while a merge was under way"
        engine._check_invariants()


def test_merges_whose_pieces_fall_due_together_take_turns() -> None:
    arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=False, words=0)
    spine, gone = arranged.spine, list[int]()

    class Merge(RunMerge):
        def __init__(self) -> None:
            self.credit, self.target, self.left, self.output = PIECE - 1, None, 10 * PIECE, None  # type: ignore[assignment]

        remaining_versions = property(lambda self: self.left)  # type: ignore[assignment]

        def advance(self, rows: int, *_: Any) -> tuple[int, int]:
            gone.append(rows)
            self.left -= rows
            return rows, rows

    spine.items = [Merge() for _ in range(4)]
    for number in range(1, 5):
        spine.advance_merges(1, arranged.slots, None, 0, True)
        assert len(gone) == number, "one piece a step"
    assert {merge.remaining_versions for merge in spine.merges} == {10 * PIECE - rows for rows in gone}
    gone.clear()
    spine.advance_merges(PIECE, arranged.slots, None, 0, True)  # a step that pays for more goes through more
    assert sum(gone) == 4 * EFFORT * PIECE and all(merge.credit < PIECE for merge in spine.merges)

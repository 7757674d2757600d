"""Make engines spill with only a few events, and count what they really spilled.

``tiny()`` shrinks the sizes of merges, ranges, chunks and pieces to a few rows, and yields a counter of `WAYS`.
``tighten(engine)`` removes an open engine's memory shares, so that everything goes to files. Without a check, a test of
spilling would pass even if nothing were spilled. So this module counts the calls of the functions that spill, and tests
assert the counts.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from ddflow.columns.threads import Threads
from ddflow.dataflow import batcher, pending_runs, step as computation
from ddflow.dataflow.admission import InputValidator
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.spill import EventRanges, spill_to_fit_budget
from ddflow.engine.engine import Engine
from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.operators.upsert import resolution
from ddflow.operators.upsert.resolution import Resolved
from ddflow.storage import inventory_text
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.scratch import LOCK
from ddflow.storage.inventory_text import InventorySectionWriter
from ddflow.trace import arrangement, index, spine
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.merge import RunMerge

MEMORY = "16MB"
"""The smallest budget that an engine with a spill folder accepts."""
WAYS = (
    "a step taken in ranges",
    "a change that went on disk at once",
    "a piece of a flush",
    "a flush half way",
    "a piece of a merge on disk",
    "a merge on disk half way",
    "a piece of a merge in memory",
    "a key found on disk",
    "a key found in a flush half way",
    "updates brought into ranges",
    "a table that was mapped",
    "pending events that were spilled",
    "an input taken in portions",
    "work shared by threads",
    "values computed from their hashes",
)
"""The kinds of work of a spilling engine that `tiny` counts."""

SMALL: list[tuple[Any, str, Any]] = [
    (pending_runs, "LARGE", 600),
    (batcher, "LARGE", 600),
    (pending_runs, "CHUNK", 150),
    (pending_runs, "FAN", 3),
    (pending_runs, "SMALL", 64),
    (batcher, "PIECE", 3),
    (spine, "PIECE", 2),
    (spine, "EFFORT", 2),
    (computation, "GATHERED", 3),
    (resolution, "SMALL", 0),
    (Threads, "waking", 1),
    (index, "SHARD", 8),
    (index, "LEAST", 8),
    (index, "SPARE", 4),
    (inventory_text, "INLINE", 2),
    (inventory_text, "EDGE", 2),
    (inventory_text, "FEWEST", 2),
    (inventory_text, "MOST", 4),
]
"""Size constants of ddflow, and the values that `tiny` gives them."""


@contextmanager
def watching() -> Iterator[Counter[str]]:
    """Count the kinds of work in ``WAYS`` while the block runs; yield the counter."""
    seen: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, tell in WATCHED:
            patch.setattr(owner, name, watched(getattr(owner, name), tell, seen))
        yield seen


@contextmanager
def tiny() -> Iterator[Counter[str]]:
    """Shrink all size constants to a few rows while the block runs. Yield the counter."""
    with pytest.MonkeyPatch.context() as patch, watching() as seen:
        for module, name, size in SMALL:
            patch.setattr(module, name, size)
        yield seen


def watched(function: Callable[..., Any], tell: Callable[..., list[str]], seen: Counter[str]) -> Callable[..., Any]:
    """Wrap a function. After each call, pass its result and arguments to ``tell``, and count what ``tell`` returns."""

    @wraps(function)
    def wrapped(*given: Any, **named: Any) -> Any:
        out = function(*given, **named)
        seen.update(tell(out, *given, **named))
        return out

    return wrapped


def _advanced(_: Any, merge: RunMerge, rows: int, slots: Any, index: Any, *__: Any) -> list[str]:
    if merge.target is None:
        return ["a piece of a merge in memory"]
    kind = "merge on disk" if index is None else "flush"
    return [f"a piece of a {kind}", *([f"a {kind} half way"] if merge.remaining_versions else [])]


def _sought(_: Any, arranged: Arrangement, held: Any, *__: Any) -> list[str]:
    first = next(iter(arranged.spine.items), None)
    if not isinstance(first, RunMerge) or first.target is None:
        return []
    written = {part.slot for part in first.output.parts}
    found = {int(word) >> SLOT & SLOTS for word in held.reference if word}
    return ["a key found in a flush half way"] if written & found else []


WATCHED: list[tuple[Any, str, Callable[..., list[str]]]] = [
    (RunMerge, "advance", _advanced),
    (Arrangement, "_look_up_keys_on_disk", _sought),
    (EventRanges, "add", lambda *_: ["a step taken in ranges"]),
    (Arrangement, "write_change", lambda out, *_: ["a change that went on disk at once"] if out.batch.mapped else []),
    (arrangement, "find_groups_in_batch", lambda out, *_: ["a key found on disk"] if out[0].size else []),
    (
        computation.StepComputation,
        "_sort_by_hash_range",
        lambda _, __, ___, by, bits: ["updates brought into ranges"] if bits else [],
    ),
    (BatchStore, "write_mapped", lambda *_: ["a table that was mapped"]),
    (Batcher, "spill", lambda _, waiting, *__: ["pending events that were spilled"] if waiting.mapped_bytes else []),
    (Threads, "run_in_parallel", lambda _, __, ___, spans: ["work shared by threads"] if len(spans) > 1 else []),
    (InputValidator, "validate_rows", lambda *given: ["an input taken in portions"] if given[5] else []),
    (Resolved, "_can_unhash_column", lambda out, *_: ["values computed from their hashes"] if out else []),
    (
        InventorySectionWriter,
        "write_inventory",
        lambda _, text, *__: ["an inventory in sections"] if text.blobs else [],
    ),
]
"""The watched functions.

Each function is wrapped together with a second function, which decides from the result and the arguments how a call
counts.
"""


def tighten(engine: Engine, share: int = 0, rows: int = 3) -> None:
    """Give the engine ``share`` bytes for each of state, pending events and results.

    A computation gets ``rows`` rows.
    """
    budget = engine.dataflow.budget
    budget.state = budget.pending = budget.buffered = share
    budget.piece = 700
    budget.compute_max_rows = lambda width: rows  # type: ignore[method-assign]
    for arranged in engine.dataflow.graph.arrangements.values():
        arranged.spine.fan = arranged.on_disk.fan = 2


def spill(engine: Engine, rest: int) -> None:
    """Spill the engine's data until ``rest`` thousandths of it are left in memory.

    0 spills everything, and 1000 only starts a flush.
    """
    folder = engine.dataflow.budget.home
    assert folder is not None
    if not rest:
        spill_to_fit_budget(engine.dataflow.budget, engine.dataflow.graph, engine.dataflow.batchers, share=0)
    for arranged in engine.dataflow.graph.arrangements.values():
        arranged.spill(folder, arranged.nbytes * rest // 1000)
    for waiting in engine.dataflow.batchers.values():
        waiting.spill(folder, waiting.nbytes * rest // 1000)


def merge(engine: Engine, effort: int | None, bite: int = 2) -> None:
    """Advance all running merges by ``effort`` versions, with ``bite`` versions at once. None completes the merges."""
    for arranged in engine.dataflow.graph.arrangements.values():
        arranged.piece = arranged.spine.most = arranged.on_disk.most = bite
        settled = arranged.latest <= arranged.since
        arranged.spine.advance_merges(effort, arranged.slots, arranged.index, arranged.since, settled, files=False)
        arranged._flush(effort)
        arranged.on_disk.advance_merges(effort, arranged.slots, None, arranged.since, settled)


@contextmanager
def full(size: int = 0) -> Iterator[None]:
    """Limit each file of this process to ``size`` bytes; a longer file gives the same error as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(place: Path | str) -> list[str]:
    """Return the files in a spill folder, except the lock file."""
    return sorted(name for name in os.listdir(place) if name != LOCK)

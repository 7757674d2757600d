"""Test the receipt backlog as a tree of files: kept files, names in the manifest, reported garbage, and refusals."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ddflow.errors import CorruptState
from ddflow.storage import backlog as module
from ddflow.storage.backlog import Backlog, BacklogFile, check_epoch_sequence
from ddflow.storage.epochs import Epoch, EpochCall, Output
from ddflow.storage.fields import encode_record
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob


def receipt(number: int) -> Epoch:
    """One with an output of one file."""
    output = Output((Blob(f"{number:016x}-0.arrow", number, bytes(16)),), 1)
    return Epoch(number, (EpochCall("step", number, "0" * 32, number, {}, {"rows": output}, {}),), None, "0" * 32)


def names(store: MemoryStore, parts: tuple[BacklogFile, ...]) -> set[str]:
    """All files of parts, by a reader of its own."""
    return {blob.name for blob in Backlog(store).list_files(parts)}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(6))
def test_any_commits_and_acknowledgements_keep_what_is_needed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, fan = random.Random(seed), random.Random(seed).choice([2, 3, 5])
    monkeypatch.setattr(module, "FAN", fan)
    monkeypatch.setattr(module, "HELD", 5)
    store, keep = MemoryStore(), chance.choice([1, 2, 8])
    log, parts, receipts, taken, most = Backlog(store), tuple[BacklogFile, ...](), tuple[Epoch, ...](), 0, 0
    versions: list[tuple[BacklogFile, ...]] = []
    for number in range(1, 400):
        receipts = (*receipts, receipt(number))
        if chance.random() < 0.05:
            taken = chance.randint(taken, number)
        if chance.random() < 0.01:
            log = Backlog(store)  # another process
        before = parts
        parts, receipts = log.move_receipts(parts, receipts, keep, taken)
        kept = [*Backlog(store).list_receipts(parts), *receipts]
        assert kept == [receipt(each) for each in range(kept[0].epoch, number + 1)]
        # No epoch that is needed is missing, and of others there are few.
        assert kept[0].epoch <= max(taken, number - keep) + 1
        assert kept[0].epoch > taken - fan or len(kept) < keep + fan
        after = chance.randint(0, number)
        wanted = [each.epoch for each in kept if after < each.epoch < receipts[0].epoch]
        assert [each.epoch for each in log.list_receipts(parts, after)] == wanted
        assert len(receipts) < keep + fan
        most = max(most, len(parts))
        versions.append(before)
        others = [*before, *(chance.choice(versions) if chance.random() < 0.2 else ())]
        mine, theirs = log.find_different_files(parts, others)
        ours, all_theirs = names(store, parts), names(store, tuple(others))
        assert mine == ours - all_theirs and all_theirs - ours <= theirs <= all_theirs
        check_epoch_sequence(parts)
    assert most <= 2 * fan * 9


def test_a_manifest_names_the_logarithm_and_a_commit_writes_a_constant() -> None:
    store, parts, receipts = MemoryStore(), tuple[BacklogFile, ...](), tuple[Epoch, ...]()
    log, sizes = Backlog(store), list[int]()
    for number in range(1, 10_001):
        parts, receipts = log.move_receipts(parts, (*receipts, receipt(number)), 8, 0)
        sizes.append(len(encode_record((parts, receipts))))
    assert len(parts) <= 3 * 15 and max(sizes[5_000:]) < 1.5 * max(sizes[200:500])
    written = sum(len(data) for data, _ in store.shared.blobs.values())
    assert written < 1.2 * sum(len(encode_record(receipt(number))) for number in range(1, 10_001))
    assert len(log._held) <= module.HELD
    parts, receipts = log.move_receipts(parts, receipts, 8, 9_000)
    assert 8_985 < parts[0].first <= 9_001 and len(parts) <= 5 * 15


def test_no_receipts_keep_no_backlog() -> None:
    log = Backlog(MemoryStore())
    parts, _ = log.move_receipts((), tuple(map(receipt, range(1, 100))), 8, 0)
    assert parts and log.move_receipts(parts, (), 8, 0) == ((), ())


def damaged(what: str, receipts: tuple[Epoch, ...]) -> tuple[MemoryStore, BacklogFile, str]:
    """A part that is not what it says, and what is said of it."""
    store = MemoryStore()

    def put(content: Any) -> Blob:
        return store.put(
            "json", lambda sink: sink.write(content if isinstance(content, bytes) else encode_record(content))
        )

    leaf = BacklogFile(put(receipts), 1, 4, 1)
    if what == "no records":
        return store, BacklogFile(put(b'[{"epoch":1}]'), 1, 1, 1), "not a record of this format"
    if what == "another range":
        return store, BacklogFile(leaf.file, 1, 3, 1), "does not hold the epochs 1 to 3"
    if what == "a gap":
        return store, BacklogFile(put((receipts[0], *receipts[2:])), 1, 4, 1), "does not hold the epochs 1 to 4"
    if what == "nothing":
        return store, BacklogFile(put(()), 1, 4, 1), "does not hold the epochs 1 to 4"
    if what == "a level":
        return store, BacklogFile(put((leaf,)), 1, 4, 3), "files that are not one level below"
    if what == "children with a gap":
        return store, BacklogFile(put((leaf, BacklogFile(leaf.file, 6, 9, 1))), 1, 9, 2), "do not follow"
    return store, BacklogFile(put((leaf,)), 1, 5, 2), "does not hold the epochs 1 to 5"


@pytest.mark.parametrize(
    "what", ["no records", "another range", "a gap", "nothing", "a level", "children with a gap", "too few"]
)
def test_what_is_not_what_it_says_is_named(what: str) -> None:
    store, part, said = damaged(what, tuple(map(receipt, range(1, 5))))
    with pytest.raises(CorruptState, match=said) as caught:
        list(Backlog(store).list_receipts([part]))
    assert part.file.name in str(caught.value)

"""Test the laws of durable state: a reopened engine continues as if it had never been closed.

Scenarios, calls and closing points are drawn, in memory or with everything in files, with automatic or manual commits.
An engine that never stops gives the expected results; ``test_laws`` compares it with the twin. Other tests here cover
repeated calls, refusals, and concurrent readers.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tight
from chance import long_test, mid_test
from doors import FOREVER, EngineDoor, plain
from durable_case import CASES, TIGHT, Case, opened, perform
from hypothesis import strategies as st
from messages import raises
from strategies import SHAPES, shapes
from test_laws import quietly
from test_medium import ALL, NONE, everything, figures, holds, moments, readable, stir

import ddflow as dd
from ddflow.errors import (
    EngineClosed,
    EpochSkipped,
    Fenced,
    NotReadable,
    OutOfMemory,
    PlanChanged,
    ReplayMismatch,
    SnapshotExpired,
    SpecError,
    StateRefused,
)
from ddflow.storage.memory import MemoryStore
from ddflow.trace.arrangement import Arrangement

BOTH = pytest.mark.parametrize("name", CASES)
MEDIA = pytest.mark.parametrize("medium", [None, TIGHT], ids=["in memory", "in files"])

EVERY = ["call", "1h", None]
"""When calls are committed.  What waits for an hour to end is committed when the engine is closed."""


def same(one: Any, other: Any) -> bool:
    """Whether a call that is given again returned what it had returned; who was resolved is not listed again."""
    return one is not None and (one.updates, one.verdicts) == (other.updates, other.verdicts)


class Restarts:
    """The durable engine of one example.  ``again``: calls since the last commit, which a restart must repeat."""

    went: ClassVar[Counter[str]] = Counter()

    def __init__(self, data: st.DataObject, scenario: Any, medium: Any, options: dict[str, Any]) -> None:
        self.data, self.scenario, self.medium = data, scenario, medium
        self.store, self.options = MemoryStore(), options
        self.again: list[tuple[list[Any], Any]] = []
        self.door = opened(scenario, self.store, medium, **options)
        self.compress()

    def compress(self) -> None:
        """Let what is written be compressed, or not, as parts of a partitioned state do: it reads the same."""
        engine = self.door.engine
        engine.durable.batch_store.compresses = engine.dataflow.budget.home is None and self.data.draw(st.booleans())

    def call(self, call: list[Any], expected: Any) -> None:
        """A call that an engine that never stops answers with ``expected``; None: refuses."""
        engine = self.door.engine
        stale = call[0] == "step" and expected is None and call[1] <= engine.last
        found = quietly(self.door, call)
        if stale:  # a step at a time that was committed may be that one given again; then it returns what it returned
            assert engine.since == self.door.engine.since
            return
        assert found == expected
        if expected is None:
            return
        if not self.options["commit_every"]:
            self.again.append((call, expected))
            if self.data.draw(st.booleans()):
                assert engine.flush() == engine.epoch
                self.again.clear()

    def restart(self) -> None:
        """Close, open, and give again what was not committed."""
        for arranged in self.door.engine.dataflow.graph.arrangements.values():
            merges = [*arranged.spine.merges, *arranged.on_disk.merges]
            Restarts.went.update(f"closed with {_kind(merge)} half way" for merge in merges if len(merge.output))
        self.door.close()
        with pytest.raises(EngineClosed):
            self.door.engine.read("a")
        self.store = self.store.reopen()
        medium = self.data.draw(st.sampled_from([None, self.medium, self.medium]))
        self.door = opened(self.scenario, self.store, medium, shape=self.door.shape, **self.options)
        self.door.engine._check_invariants()
        self.compress()
        for call, expected in self.again:
            assert quietly(self.door, call) == expected
        Restarts.went["a restart"] += 1


def _kind(merge: Any) -> str:
    return "a flush or a merge on disk" if merge.target is not None else "a merge in memory"


def restarted(media: list[Any]) -> Any:
    """The law of restart, for an engine with any of some media: what memory it has."""

    def law(data: st.DataObject, trace: Any) -> None:
        (scenario, played), shape, medium = trace, data.draw(shapes()), data.draw(st.sampled_from(media))
        options = {
            "retain": data.draw(st.sampled_from([0, 2, FOREVER])),
            "verdicts": data.draw(st.sampled_from(["rows", "counts"])),
        }
        never = EngineDoor(scenario, shape, **options)
        other = Restarts(data, scenario, medium, options | {"commit_every": data.draw(st.sampled_from(EVERY))})
        for call in played:
            other.call(call, quietly(never, call))
            if other.door.engine.dataflow.budget.home is not None:
                stir(data, other.door)
            else:
                tight.merge(other.door.engine, data.draw(st.sampled_from([0, 1, 3])), 2)
            if data.draw(st.booleans()):
                other.restart()
            other.door.engine._check_invariants()
            assert figures(other.door) == figures(never)
            times = moments(data, readable(never))
            assert everything(other.door, times) == everything(never, times)
        other.restart()
        assert figures(other.door) == figures(never)
        assert everything(other.door) == everything(never)
        other.door.close()

    return law


@long_test
@pytest.mark.drawn(2, of="media")
@pytest.mark.sampled
def test_restart_close_reopen_and_go_on_is_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    small_spines(monkeypatch)
    Restarts.went.clear()
    holds(restarted([None]), ["a piece of a merge in memory"], 18)
    assert Restarts.went["a restart"] > 40 and Restarts.went["closed with a merge in memory half way"]


@pytest.mark.drawn(2, of="media")
@pytest.mark.sampled
def test_restart_of_state_in_files_is_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    small_spines(monkeypatch)
    Restarts.went.clear()
    ways = [
        "a piece of a flush",
        "a flush half way",
        "a key found on disk",
        "a piece of a merge on disk",
        "a change that went on disk at once",
        "pending events that were spilled",
    ]
    holds(restarted([ALL, NONE]), ways, 18)
    assert Restarts.went["a restart"] > 40 and Restarts.went["closed with a flush or a merge on disk half way"]


def small_spines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges of two runs, from the first event on: also while a state is made again."""
    made = Arrangement.__init__

    def small(self: Arrangement, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.spine.fan = self.on_disk.fan = 2

    monkeypatch.setattr(Arrangement, "__init__", small)


# What was committed, given again.


@BOTH
@MEDIA
def test_each_epoch_given_again_returns_what_it_returned_however_its_rows_are_cut(name: str, medium: Any) -> None:
    case, store = CASES[name], MemoryStore()
    door = case.open(store, medium)
    for epoch in range(1, len(case.calls) + 1):
        case.go(door, epoch)
        assert door.engine.epoch == epoch
        case.holds(door, epoch)
    before = store.shared.blobs.keys(), store.list_manifests()
    for shape in SHAPES.values():
        for again in (door, opened(case.scenario, store.reopen(), None, shape=shape)):
            again.shape = shape
            for epoch in (len(case.calls), 1, *range(1, len(case.calls) + 1)):
                case.go(again, epoch)
            case.holds(again, len(case.calls))
    assert (store.shared.blobs.keys(), store.list_manifests()) == before


def test_a_step_at_a_time_that_was_committed_is_told_again_without_its_number() -> None:
    case, store = CASES["epochs"], MemoryStore()
    with case.open(store).engine:
        pass
    door = case.open(store.reopen())
    case.go(door, 1)
    case.go(door, 2)
    for epoch in (1, 2):
        case.agrees(door, perform(door, case.calls[epoch - 1]), epoch)
    case.holds(door, 2)


@BOTH
def test_an_epoch_of_several_calls_is_told_again_call_by_call(name: str) -> None:
    case, store = CASES[name], MemoryStore()
    door = case.open(store, commit_every=None)
    for epoch, calls in ((1, (1, 2)), (2, (3, 4))):
        for number in calls:
            case.agrees(door, perform(door, case.calls[number - 1], epoch), number)
        assert door.engine.epoch == epoch - 1 and door.engine.flush() == epoch
    door = case.open(store.reopen(), commit_every=None)
    case.holds(door, 4)
    for _ in range(2):
        for epoch, calls in ((1, (1, 2)), (2, (3, 4))):
            for number in calls:
                case.agrees(door, perform(door, case.calls[number - 1], epoch), number)
            with raises(ReplayMismatch):
                perform(door, case.calls[4], epoch)
            assert door.engine.flush() == 2
        door = case.open(store.reopen(), commit_every=None)
    case.agrees(door, perform(door, case.calls[4], 3), 5)
    assert door.engine.flush() == 3
    case.holds(door, 5)


@BOTH
def test_other_rows_times_or_calls_under_a_committed_number_are_refused_and_change_nothing(name: str) -> None:
    case, store = CASES[name], MemoryStore()
    door = case.open(store)
    for epoch in (1, 2, 3):
        case.go(door, epoch)
    verb, *rest, inputs = case.calls[0]
    changed = {"a": [[*inputs["a"][0][:1], "another text", *inputs["a"][0][2:]], *inputs["a"][1:]]}
    wrong = [
        [verb, *rest, changed],
        [verb, *rest, {"a": inputs["a"][:-1]}],
        [verb, *rest, {"a": inputs["a"][::-1]}],
        [verb, *rest, {}],
    ]
    wrong += [["step", 9, inputs]] if verb == "step" else [["advance", 9]]
    for call in wrong:
        for again in (door, case.open(store.reopen())):
            with raises(ReplayMismatch):
                perform(again, call, 1)
            case.holds(again, 3)
            case.go(again, 1)
    if verb == "step":
        with raises(ReplayMismatch):
            perform(door, wrong[0])
    case.go(case.open(store.reopen()), 4)


@BOTH
def test_epochs_that_skip_or_are_kept_no_more_are_refused(name: str) -> None:
    case, store = CASES[name], MemoryStore()
    door = case.open(store)
    for epoch in (2, 3, 0, -1):
        with raises(EpochSkipped):
            case.play(door, epoch) if epoch > 0 else perform(door, case.calls[0], epoch)
    case.go(door, 1)
    with raises(EpochSkipped):
        case.play(door, 3)
    case.holds(door, 1)
    later = [["step", 100 + i, {}] if name == "epochs" else ["advance", 1 + i] for i in range(8)]
    for epoch, call in enumerate(later, 2):
        perform(door, call, epoch)
    for again in (door, case.open(store.reopen())):
        with raises(EpochSkipped):
            case.play(again, 1)
        perform(again, later[0], 2)


def test_what_old_epochs_returned_is_deleted_when_they_cannot_be_given_again() -> None:
    store = MemoryStore()
    flow = dd.Flow()
    flow.output("all", flow.upserts("a", {"k": pa.int64()}, dd.Upsert("k")))
    with flow.open(store, grace=0) as engine:
        sizes = []
        for time in range(1, 40):
            engine.step({"a": pa.table({"k": [7]})}, time)
            sizes.append((len(store.list_blobs()), len(store.list_manifests())))
    # Seven of the steps say nothing new; one row, its receipts and the manifests are all that is left.
    assert max(sizes[20:]) == min(sizes[20:]) and sizes[-1][1] == 2 and sizes[-1][0] <= 4


# Committed by hand.


@BOTH
@MEDIA
def test_without_commits_of_its_own_nothing_is_there_until_the_commit_and_then_all_of_it(
    name: str, medium: Any
) -> None:
    case, store = CASES[name], MemoryStore()
    door = case.open(store, medium, commit_every=None)
    assert door.engine.flush() == 0 and store.list_manifests() == [0]
    for number in (1, 2):
        case.agrees(door, perform(door, case.calls[number - 1]), number)
    case.holds(door, 2)
    assert dd.read(store.reopen(), "by_s").num_rows == 0 and door.engine.epoch == 0
    door.close()
    door = case.open(store.reopen(), medium, commit_every=None)
    case.holds(door, 0)
    for number in (1, 2):
        case.agrees(door, perform(door, case.calls[number - 1]), number)
    assert door.engine.flush() == door.engine.flush() == 1
    case.agrees(door, perform(door, case.calls[2], 2), 3)
    with pytest.raises(EpochSkipped):
        perform(door, case.calls[3], 1)  # which is no time to look back
    door.close()
    door = case.open(store.reopen(), medium)
    assert door.engine.epoch == 1
    case.holds(door, 2)
    case.agrees(door, perform(door, case.calls[2], 2), 3)
    case.holds(door, 3)


def test_commit_and_epochs_are_for_durable_state_only() -> None:
    door = EngineDoor(CASES["epochs"].scenario)
    with raises(SpecError):
        door.engine.flush()
    with raises(SpecError):
        CASES["epochs"].play(door, 1)
    assert door.engine.epoch == 0
    for option in ({"commit_every": None}, {"outputs": "somewhere"}):
        with raises(SpecError):
            EngineDoor(CASES["epochs"].scenario, **option)


# Two at once.


@BOTH
@MEDIA
def test_a_second_writer_fences_the_first_within_one_operation(tmp_path: Path, name: str, medium: Any) -> None:
    case, state = CASES[name], tmp_path / "state"
    first = case.open(state, medium)
    case.go(first, 1)
    second = case.open(state, medium)
    case.go(second, 2)
    for epoch in (2, 3):
        for act in (lambda epoch=epoch: case.play(first, epoch), lambda: perform(first, case.calls[2])):
            with pytest.raises((Fenced, EpochSkipped)) as caught:
                act()
            assert isinstance(caught.value, Fenced) or epoch == 3
    case.holds(first, 1)
    first.close()
    case.holds(second, 2)
    assert case.recovered(state, 2, 2, medium=medium) == 2


def test_a_writer_that_is_overtaken_between_step_and_commit_publishes_nothing(tmp_path: Path) -> None:
    case, state = CASES["epochs"], tmp_path / "state"
    first, second = case.open(state, commit_every=None), case.open(state)
    perform(first, case.calls[1])
    case.go(second, 1)
    with raises(Fenced):
        first.engine.flush()
    with raises(EngineClosed):
        perform(first, case.calls[2])
    first.close()
    gc.collect()
    case.go(second, 2)
    assert case.recovered(state, 2, 2) == 2


# Outputs in a folder.


@BOTH
def test_outputs_in_a_folder_are_those_of_committed_epochs_and_only_they(tmp_path: Path, name: str) -> None:
    case, state, place = CASES[name], tmp_path / "state", tmp_path / "outputs"
    door = case.open(state, outputs=place, commit_every=None)
    for epoch in range(1, len(case.calls) + 1):
        case.agrees(door, perform(door, case.calls[epoch - 1], epoch), epoch)
        assert len(shown(place, door)) == epoch - 1
        door.engine.flush()
        assert len(shown(place, door)) == epoch or not case.results[epoch].updates
        if epoch % 3 == 0:
            door.close()
            door = case.open(state, outputs=place, commit_every=None)
        for before in range(1, epoch + 1):
            case.go(door, before)
    told = shown(place, door)
    for epoch, result in enumerate(case.results):
        given = {output: updates for output, updates in result.updates.items() if updates}
        assert told.get(epoch, {}) == given
    door.close()
    door = case.open(state)  # who does not name the folder still finds there what was told
    for epoch in range(1, len(case.calls) + 1):
        case.go(door, epoch)


def shown(place: Path, door: EngineDoor) -> dict[int, dict[str, Any]]:
    """What a reader of the folder finds, by epoch and output; epochs without updates count too."""
    found: dict[int, dict[str, Any]] = {epoch: {} for epoch in range(1, door.engine.epoch + 1)}
    names = json.loads((place / "outputs.json").read_text())["outputs"]
    for output, folder in names.items():
        for path in sorted((place / folder).glob("[!.]*.parquet")):
            out: Counter[Any] = Counter()
            for *row, time, diff in plain(pq.read_table(path)):
                out[(tuple(row), time)] += diff
            found[int(path.name.split("-")[0])][output] = dict(out)
    return found


def test_what_a_crash_left_hidden_is_shown_by_whoever_opens_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddflow.connectors.parquet.sink import OutputFolder

    case, state, place = CASES["epochs"], tmp_path / "state", tmp_path / "outputs"
    door = case.open(state, outputs=place)
    case.go(door, 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(OutputFolder, "publish_epoch", interrupted)
        case.play(door, 2)
    with raises(EngineClosed):
        case.play(door, 3)
    door.close()
    assert shown(place, door).keys() == {1, 2} and not shown(place, door)[2]
    door = case.open(state, outputs=place)
    assert door.engine.epoch == 2
    assert shown(place, door)[2] == {name: each for name, each in case.results[2].updates.items() if each}
    case.go(door, 3)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


# Plans that change.


def test_a_column_and_an_output_are_gained_and_nothing_else_may_change(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def flow(columns: dict[str, Any], outputs: dict[str, list[str]], key: str = "k") -> dd.Flow:
        out = dd.Flow()
        rows = out.upserts("a", {"k": pa.int64(), **columns}, dd.Upsert(key))
        out.output("all", rows)
        for name, by in outputs.items():
            out.output(name, rows.count(by))
        return out

    old, new = {"s": pa.string()}, {"s": pa.string(), "n": pa.int64()}
    with flow(old, {}).open(state) as engine:
        engine.step({"a": pa.table({"k": [1, 2, 3], "s": ["x", "x", "y"]})}, 1)
    with flow(new, {"by_s": ["s"], "by_n": ["n"]}).open(state) as engine:
        out = engine.step({"a": pa.table({"k": [3, 4], "s": ["y", "z"], "n": [None, 4]})}, 2)
        assert out.verdicts.counts["noop"] == 1  # a row that was stored without the column has null there
        assert sorted(plain(out["by_s"])) == [("x", 2, 1, 1), ("y", 1, 1, 1), ("z", 1, 2, 1)]
        assert sorted(plain(out["by_n"]), key=repr) == [(4, 1, 2, 1), (None, 3, 1, 1)]
        assert sorted(plain(out["all"])) == [(4, "z", 4, 2, 1)]
        again = engine.step({"a": pa.table({"k": [3, 4], "s": ["y", "z"], "n": [None, 4]})}, 2, epoch=2)
        assert all(again[name].equals(out[name]) for name in out)
    with flow(new, {"by_s": ["s"], "by_n": ["n"]}).open(state, memory="16MB") as engine:
        out = engine.step({"a": pa.table({"k": [1], "s": ["z"], "n": [4]})}, 3)
        assert sorted(plain(out["by_n"]), key=repr) == [(4, 1, 3, -1), (4, 2, 3, 1), (None, 2, 3, 1), (None, 3, 3, -1)]
    for changed in (flow(old, {}), flow(new | {"s": pa.int64()}, {}), flow(new, {}, "s")):
        before = sorted(os.listdir(state / "manifests"))
        with pytest.raises(PlanChanged):
            changed.open(state)
        assert sorted(os.listdir(state / "manifests")) == before


# Reading at other times, and by others.


@pytest.mark.drawn(3)
@MEDIA
@pytest.mark.parametrize("retain", [0, 2, FOREVER])
def test_history_is_read_after_reopening_as_far_back_as_before(tmp_path: Path, medium: Any, retain: int) -> None:
    case, state = CASES["epochs"], tmp_path / "state"
    last = len(case.calls)
    door = case.open(state, medium, retain=retain)
    for epoch in range(1, last + 1):
        case.go(door, epoch)
    since = door.engine.since
    door.close()
    door = case.open(state, medium, retain=retain)
    assert (door.engine.since, door.engine.last, door.engine.frontier) == (since, last, last + 1)
    for time in range(1, last + 1):
        for name in case.names:
            if time >= since:
                assert door.read(name, time) == case.after[time].reads[name]
                assert door.collection(name, dd.read(state, name, time)) == case.after[time].reads[name]
            else:
                for act in (
                    lambda name=name, time=time: door.read(name, time),
                    lambda name=name, time=time: dd.read(state, name, time),
                ):
                    with pytest.raises(NotReadable):
                        act()
    if retain:
        changes = door.changes("by_s", last - 2, last)
        before, after = case.after[last - 2].reads["by_s"], case.after[last].reads["by_s"]
        assert changes == {row: after[row] - before[row] for row in {*before, *after} if after[row] != before[row]}


@pytest.mark.drawn(2)
@BOTH
@MEDIA
def test_others_read_the_last_commit_and_older_ones_while_they_are_kept(tmp_path: Path, name: str, medium: Any) -> None:
    case, state = CASES[name], tmp_path / "state"
    with raises(StateRefused):
        dd.read(state, "all")
    for grace, kept in ((60.0, range(1, len(case.calls) + 1)), (0.0, range(len(case.calls) - 1, len(case.calls) + 1))):
        place = state / str(grace)
        door = case.open(place, medium, grace=grace)
        for epoch in range(1, len(case.calls) + 1):
            case.go(door, epoch)
            for output in case.names:
                assert door.collection(output, dd.read(place, output)) == case.after[epoch].reads[output]
        for epoch in range(1, len(case.calls) + 1):
            for output in case.names:
                if epoch in kept:
                    found = dd.read(place, output, epoch=epoch)
                    assert door.collection(output, found) == case.after[epoch].reads[output]
                else:
                    with raises(SnapshotExpired):
                        dd.read(place, output, epoch=epoch)


@mid_test
def test_memory_and_files_hold_the_same_after_a_long_story(tmp_path: Path) -> None:
    from durable_case import _epochs

    case: Case = _epochs(40, seed=3, rows=20, keys=60)
    doors = [case.open(tmp_path / "memory"), case.open(tmp_path / "files", TIGHT, grace=0.0)]
    for epoch in range(1, 41):
        for i, door in enumerate(doors):
            case.go(door, epoch)
            if epoch % (7 + i) == 0:
                door.close()
                doors[i] = case.open(tmp_path / ("memory", "files")[i], (None, TIGHT)[i], grace=(60.0, 0.0)[i])
    for door in doors:
        case.holds(door, 40)
        door.engine._check_invariants()
        door.close()
    names = os.listdir(tmp_path / "files" / "blobs")
    assert len(names) < 80  # what merges and old receipts left is gone


# Bugs that were found, each by what showed it.


@BOTH
def test_a_call_without_rows_is_an_epoch_like_any_other(name: str) -> None:
    """Its digest was empty, which no manifest may have: the state could not be opened again."""
    case, store = CASES[name], MemoryStore()
    door = case.open(store)
    call = ["step", 1, {}] if name == "epochs" else ["push", {}]
    expected = door._call(lambda: perform(door, call, 1))
    for again in (door, case.open(store.reopen())):
        assert same(again._call(lambda again=again: perform(again, call, 1)), expected)
        assert same(again._call(lambda again=again: perform(again, [*call[:-1], {"a": []}], 1)), expected)


def test_a_merge_that_went_further_than_was_paid_for_is_gone_on_with() -> None:
    """Its credit is less than nothing then, which was taken for damage: the state could not be opened again."""
    case, store = CASES["epochs"], MemoryStore()
    with tight.tiny():
        door, met = case.open(store), 0
        for epoch in range(1, len(case.calls) + 1):
            case.go(door, epoch)
            merges = [merge for each in door.engine.dataflow.graph.arrangements.values() for merge in each.spine.merges]
            for merge in merges:
                merge.credit, met = -7, met + 1
            door.engine.durable.publish_version(
                door.engine.dataflow, door.engine.durable.log.manifest_log.manifest.receipts, "a test"
            )
            door.close()
            store = store.reopen()
            door = case.open(store)
            again = [merge for each in door.engine.dataflow.graph.arrangements.values() for merge in each.spine.merges]
            assert [merge.credit for merge in again] == [merge.credit for merge in merges]
            case.holds(door, epoch)
    assert met


def test_a_step_that_fails_after_it_was_taken_in_is_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said that nothing had changed, and the next epoch held what no receipt told of."""
    case, store = CASES["epochs"], MemoryStore()
    door = case.open(store, TIGHT)
    case.go(door, 1)
    calls: list[int] = []

    def no_memory(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:  # the room that is made after the step, not before it
            raise MemoryError

    monkeypatch.setattr("ddflow.dataflow.dataflow.spill_to_fit_budget", no_memory)
    with raises(OutOfMemory):
        case.play(door, 2)
    with raises(EngineClosed):
        case.play(door, 2)
    door.close()
    monkeypatch.undo()
    assert case.recovered(store.reopen(), 1, 1) == 1

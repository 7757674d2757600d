"""Test the engine as a state machine: any calls in any order, also wrong calls, and the twin agrees after each call.

hypothesis chooses each next call with knowledge of the frontier. The calls read at any time, open and close readers,
and break the rules on purpose. hypothesis shrinks a failure to the fewest calls. A second state machine runs the same
with ``tight``: state moves between memory and disk, merges advance by any effort, and the disk is sometimes full.
"""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from chance import covering, effort
from doors import FOREVER
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import CLOSED, NEVER
from pair import Pair
from strategies import events, scenarios, shapes
from tight import tiny

WIDER = {"int8": "int32", "int32": "int64", "float32": "float64", "string": "large_string"}
"""Types that an engine widens between two calls."""


class Calls(RuleBasedStateMachine):
    """The calls that both answer; ``self.now`` is the last time of a step, or the frontier."""

    pair: Pair

    def begin(self, pair: Pair) -> None:
        self.pair, self.inputs = pair, pair.scenario["inputs"]
        self.holds_back = pair.twin.twin.holds_back
        self.now = 0

    @property
    def frontier(self) -> int:
        return self.pair.twin.twin.state.frontier

    def rows_for(self, data: st.DataObject, at: int) -> dict[str, Any]:
        names = data.draw(st.sampled_from([[name] for name in self.inputs] + [list(self.inputs), []]))
        return {name: data.draw(events(self.inputs[name], most=5, times=(at - 2, at + 3))) for name in names}

    @precondition(lambda self: not self.holds_back)
    @rule(data=st.data(), ahead=st.integers(1, 3))
    def step(self, data: st.DataObject, ahead: int) -> None:
        if self.pair.step(self.rows_for(data, self.now), self.now + ahead) is not None:
            self.now += ahead

    @precondition(lambda self: not self.holds_back and self.frontier > NEVER)
    @rule(data=st.data(), behind=st.integers(0, 2))
    def step_back_is_refused(self, data: st.DataObject, behind: int) -> None:
        assert self.pair.step(self.rows_for(data, self.now), self.frontier - 1 - behind) is None

    @precondition(lambda self: self.holds_back and self.frontier < CLOSED)
    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        self.pair.push(self.rows_for(data, self.now))
        self.now = max(self.now, self.frontier) if self.frontier < CLOSED else self.now

    @precondition(lambda self: self.holds_back and self.frontier < CLOSED)
    @rule(ahead=st.integers(0, 3))
    def advance(self, ahead: int) -> None:
        if self.pair.advance_to(max(self.now, self.frontier) + ahead) is not None:
            self.now = self.frontier

    @precondition(lambda self: self.holds_back and self.frontier > NEVER)
    @rule(behind=st.integers(1, 3))
    def advance_back_is_refused(self, behind: int) -> None:
        assert self.pair.advance_to(self.frontier - behind) is None

    @rule(data=st.data(), kind=st.sampled_from(["int8", "string", "float32"]))
    def evolve(self, data: st.DataObject, kind: str) -> None:
        """A new column, or a wider one: the engine takes it, or names what would mean something else."""
        scenario = copy.deepcopy(dict(self.pair.scenario))
        name = data.draw(st.sampled_from([*self.inputs]))
        columns = scenario["inputs"][name]["columns"]
        wider = [column for column, known in columns.items() if known in WIDER]
        if wider and data.draw(st.booleans()):
            column = data.draw(st.sampled_from(wider))
            columns[column] = WIDER[columns[column]]
        else:
            columns["abcdefghijklmnopqrstuvwxyz"[len(columns)] * 9] = kind  # near no other name, which is refused
        if self.pair.evolve(scenario):
            self.inputs = scenario["inputs"]

    @precondition(lambda self: self.holds_back and self.now > 6)
    @rule()
    def end_the_input(self) -> None:
        self.pair.advance_to(CLOSED)

    @rule()
    def use_the_other_mode_is_refused(self) -> None:
        assert (self.pair.step({}, self.now + 1) if self.holds_back else self.pair.push({})) is None

    @rule(back=st.integers(0, 4))
    def read(self, back: int) -> None:
        history = [time for time, _ in self.pair.twin.twin.history]
        self.pair.check_reads(*history[-1 - back : len(history) - back])

    def times(self) -> st.SearchStrategy[int]:
        """Times around those that mean something: of events, of readers, since, the frontier; some cannot be read."""
        pair = self.pair
        known = {time for time, _ in pair.twin.twin.history[-5:]} | {reader.time for reader, _ in pair.readers.values()}
        near = {t + d for t in known | {pair.since, pair.last, self.frontier} for d in (-1, 0, 1)}
        return st.sampled_from(sorted(time for time in near if NEVER <= time <= CLOSED))

    @rule(data=st.data())
    def changes_between_two_times(self, data: st.DataObject) -> None:
        t1, t2 = data.draw(self.times()), data.draw(self.times())
        self.pair.changes(data.draw(st.sampled_from(self.pair.names)), min(t1, t2), max(t1, t2))

    @rule(data=st.data())
    def changes_backwards_are_refused(self, data: st.DataObject) -> None:
        time = data.draw(self.times().filter(lambda time: time > NEVER))
        assert self.pair.changes(self.pair.names[0], time, time - 1) is None

    @precondition(lambda self: len(self.pair.readers) < 3)
    @rule(data=st.data(), now=st.booleans())
    def open_a_reader(self, data: st.DataObject, now: bool) -> None:
        opened = self.pair.open(data.draw(st.sampled_from(self.pair.names)), None if now else data.draw(self.times()))
        assert opened is not None or not now

    @precondition(lambda self: self.pair.readers)
    @rule(data=st.data(), now=st.booleans(), follows=st.booleans())
    def advance_a_reader(self, data: st.DataObject, now: bool, follows: bool) -> None:
        number, to = data.draw(st.sampled_from([*self.pair.readers])), None if now else data.draw(self.times())
        if follows:
            self.pair.follow(number, to)
        else:
            self.pair.move(number, to)

    @precondition(lambda self: self.pair.readers)
    @rule(data=st.data(), forget=st.booleans())
    def let_go_of_a_reader(self, data: st.DataObject, forget: bool) -> None:
        self.pair.release_hold(data.draw(st.sampled_from([*self.pair.readers])), forget)

    @rule()
    def read_one_key_twice_never(self) -> None:
        for name, input in self.inputs.items():
            places = [self.pair.engine.columns_of(name).index(key) for key in input["spec"]["key"]]
            keys = Counter(tuple(row[i] for i in places) for row in self.pair.engine.read(name).elements())
            assert set(keys.values()) <= {1}

    @invariant()
    def events_in_are_judged_or_pending(self) -> None:
        if hasattr(self, "pair"):
            state = self.pair.twin.twin.state
            assert state.arrived.total() == state.totals.total() + len(state.pending)

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.close()


class Machine(Calls):
    """One scenario, opened by both, in memory."""

    @initialize(
        scenario=scenarios(),
        shape=shapes(),
        retain=st.sampled_from([0, 0, 1, 4, FOREVER]),
        verdicts=st.sampled_from(["rows", "counts"]),
    )
    def open(self, scenario: dict[str, Any], shape: Any, retain: int, verdicts: str) -> None:
        self.begin(Pair(scenario, shape, retain=retain, verdicts=verdicts))


class SpillingMachine(Calls):
    """The same with a folder to spill to, and as much or as little memory as is drawn; ``actions``: done by all."""

    went: ClassVar[Counter[str]] = Counter()
    actions = 0

    @initialize(
        scenario=scenarios(),
        shape=shapes(),
        retain=st.sampled_from([0, 0, 1, 4, FOREVER]),
        verdicts=st.sampled_from(["rows", "counts"]),
        share=st.sampled_from([0, 2**40]),
        rows=st.sampled_from([1, 3, 2**40]),
    )
    def open_tight(
        self, scenario: dict[str, Any], shape: Any, retain: int, verdicts: str, share: int, rows: int
    ) -> None:
        self.stack = ExitStack()
        self.seen = self.stack.enter_context(tiny())
        medium = {"share": share, "rows": rows}
        self.begin(Pair(scenario, shape, retain=retain, verdicts=verdicts, medium=medium))

    @rule(rest=st.sampled_from([0, 500, 1000, 1000]))
    def spill(self, rest: int) -> None:
        self.pair.spill(rest)

    @rule(effort=st.sampled_from([0, 1, 2, 5, None]), bite=st.sampled_from([1, 2, 9]))
    def merge(self, effort: int | None, bite: int) -> None:
        self.pair.merge(effort, bite)

    @rule(data=st.data())
    def go_on_while_the_disk_is_full(self, data: st.DataObject) -> None:
        if not self.holds_back:
            call = ["step", self.now + 1, self.rows_for(data, self.now)]
        elif self.frontier < CLOSED and data.draw(st.booleans()):
            call = ["push", self.rows_for(data, self.now)]
        else:
            call = ["advance", max(self.now, self.frontier)]
        if self.pair.hindered(call) is not None:
            self.now = self.now + 1 if not self.holds_back else min(max(self.now, self.frontier), 2**62)

    @invariant()
    def what_it_holds_is_sound(self) -> None:
        if hasattr(self, "pair"):
            self.pair.engine.engine._check_invariants()
            type(self).actions += 1

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            with self.stack:
                super().teardown()
            self.went.update(self.seen)


TestMachine = Machine.TestCase
TestMachine.settings = effort(150, stateful_step_count=15)


@pytest.mark.drawn(2, of="media")
@pytest.mark.sampled
def test_the_machine_that_spills_does_so_and_agrees() -> None:
    run_state_machine_as_test(SpillingMachine, settings=covering(60, stateful_step_count=25))
    # The other ways want more keys than these scenarios have: the laws of the medium go them.
    ways = {
        "a piece of a flush",
        "a key found on disk",
        "a step taken in ranges",
        "a change that went on disk at once",
        "pending events that were spilled",
    }
    assert ways - set(SpillingMachine.went) == set()


@pytest.mark.soak
def test_two_hundred_thousand_random_actions_with_state_on_its_way_to_disk(capsys: pytest.CaptureFixture[str]) -> None:
    SpillingMachine.actions = 0
    while SpillingMachine.actions < 200_000:
        run_state_machine_as_test(SpillingMachine, settings=settings(max_examples=200, stateful_step_count=50))
    with capsys.disabled():
        print(f"\n{SpillingMachine.actions:,} random actions: {dict(SpillingMachine.went)}")

"""Judging gives what the rulings say, read off one event after the other: who wins, what changes, and every verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddflow.kernels.resolve import (
    APPLIED,
    ERROR,
    FIRST,
    GREATEST,
    LAST,
    LIVE,
    NOOP,
    NOTHING,
    OCCUPIED,
    RETRACTED,
    STALE,
    SUPERSEDED,
    TIE_LOST,
    Events,
    Held,
    Rules,
    judge,
    judged,
)

pytestmark = pytest.mark.kernels
Words = tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """One event as the kernel sees it; ``row`` is its number."""

    row: int
    group: int
    rank: int
    base: Words
    further: Words
    gone: bool
    value: int


@dataclass(frozen=True)
class State:
    """What a key holds: where its row is, whether that is live, its value's hash, and the order it was won by."""

    reference: int = 0
    live: bool = False
    value: int = 0
    base: Words = ()
    further: Words = ()


@dataclass
class Outcome:
    """What must come out, in the order of groups and times."""

    verdict: dict[int, int] = field(default_factory=dict)
    winner: dict[int, int] = field(default_factory=dict)
    updates: list[tuple[int, int]] = field(default_factory=list)
    history: dict[tuple[int, int], State] = field(default_factory=dict)


class Tied(Exception):
    """Under ERROR: two events of equal order."""


def fold(events: list[Event], held: list[State], tie: int, ties: bool, keeps: bool) -> Outcome:
    """The rulings of docs/semantics.md ("Time, order, winners"; "Verdicts"), event by event."""
    out = Outcome()
    for group, state in enumerate(held):
        ruler = -1 - group if keeps and state.reference else NOTHING
        for rank in sorted({event.rank for event in events if event.group == group}):
            now = [event for event in events if (event.group, event.rank) == (group, rank)]
            best = champion(now, state if ruler != NOTHING else None, tie, out)
            if best is not None:
                for event in now:
                    if event is not best and out.verdict[event.row] == SUPERSEDED:
                        out.verdict[event.row] = TIE_LOST if ties and event.base == best.base else SUPERSEDED
                ruler, state = best.row if keeps else NOTHING, taken(best, state, out)
            for event in now:
                out.winner[event.row] = ruler if best is None else best.row
            out.history[group, rank] = state
    return out


def champion(now: list[Event], held: State | None, tie: int, out: Outcome) -> Event | None:
    """Who wins against the others of its time and what is held, if anybody; writes the verdicts of those who lost."""
    contenders: list[Event] = []
    for event in now:
        out.verdict[event.row] = SUPERSEDED
        if held is not None and event.base < held.base:
            out.verdict[event.row] = STALE
            continue
        if held is not None and event.base == held.base:
            if tie == ERROR:
                raise Tied
            if tie == LAST and event.further < held.further:
                out.verdict[event.row] = STALE
                continue
            if event.further < held.further or (tie == FIRST and event.further == held.further):
                out.verdict[event.row] = TIE_LOST
                continue
        contenders.append(event)
    if tie == ERROR and len({event.base for event in contenders}) < len(contenders):
        raise Tied
    if tie == LAST:
        contenders.reverse()
    return max(contenders, key=lambda event: (event.base, event.further), default=None)


def taken(best: Event, state: State, out: Outcome) -> State:
    """What the key holds after ``best`` has won; writes its verdict and the updates."""
    changed = best.gone == state.live if best.gone or not state.live else best.value != state.value
    out.verdict[best.row] = APPLIED if changed else NOOP
    if changed and state.live:
        out.updates.append((best.rank, state.reference | RETRACTED))
    if changed and not best.gone:
        out.updates.append((best.rank, best.row))
    row = best.row if changed or best.gone else state.reference
    return State(row, not best.gone, best.value, best.base, best.further)


@st.composite
def steps(draw: st.DrawFn, tie: int) -> tuple[list[Event], list[State], int, int]:
    """Events in the order of times, what their keys hold, and how many words of order there are: base and further."""
    base, further = draw(st.integers(0, 2)), 0 if tie == ERROR else draw(st.integers(0, 1))
    words = st.tuples(*[st.integers(0, 2)] * base), st.tuples(*[st.integers(-1, 1)] * further)
    groups, ranks = draw(st.sampled_from([3, 1, 2])), draw(st.sampled_from([3, 1, 2]))
    least = draw(st.sampled_from([8, 1, 4]))  # many events as a rule, so that keys and times meet
    kinds = st.integers(0, groups - 1), st.integers(0, ranks - 1), *words, st.booleans(), st.integers(1, 2)
    drawn = draw(st.lists(st.tuples(*kinds), min_size=least, max_size=10))
    drawn.sort(key=lambda event: event[1])
    present = sorted({event[0] for event in drawn})
    events = [Event(row, present.index(group), *rest) for row, (group, *rest) in enumerate(drawn)]
    held = []
    for i in range(len(present)):
        kind = draw(st.sampled_from(["absent", "live", "deleted"]))
        live = kind == "live"
        reference = OCCUPIED | (LIVE if live else 0) | 7 << 40 | i
        held.append(State() if kind == "absent" else State(reference, live, draw(st.integers(1, 2)), *map(draw, words)))
    return events, held, base, further


def run(events: list[Event], held: list[State], rules: Rules, words: int, winners: bool = True) -> Any:
    """The kernel's outcome, with its counts."""
    by = sorted(range(len(events)), key=lambda i: (events[i].group, i))
    if rules.tie == ERROR:
        by.sort(key=lambda i: (events[i].group, events[i].rank, events[i].base, i))
    starts = [place for place, i in enumerate(by) if place == 0 or events[i].group != events[by[place - 1]].group]
    ranks = [event.rank for event in events]
    order = np.array([event.base + event.further for event in events], np.int64).reshape(len(events), words)
    before = np.zeros((len(held), words if rules.keeps else 0), np.int64)
    if rules.keeps:
        for i, state in enumerate(held):
            before[i] = (state.base + state.further) if state.reference else 0
    work = Events(np.array(by, np.int64), np.array([*starts, len(by)], np.int64),
                  np.array(ranks if len(set(ranks)) > 1 or any(ranks) else [], np.int64), order,
                  np.array([event.gone for event in events], np.uint8),
                  np.array([event.value for event in events], np.uint64))  # fmt: skip
    now = Held(np.array([state.reference for state in held], np.int64),
               np.array([state.value for state in held], np.uint64), before)  # fmt: skip
    out = judged(len(events), len(held), winners)
    return judge(work, now, rules, out), out, by


@settings(max_examples=250)
@given(st.data(), st.sampled_from([LAST, FIRST, GREATEST, ERROR]), st.booleans(), st.booleans(), st.integers(-1, 3))
def test_updates_verdicts_and_winners_are_those_of_the_rulings(
    data: st.DataObject, tie: int, ties: bool, keeps: bool, since_rank: int
) -> None:
    events, held, base, further = data.draw(steps(tie))
    (updates, versions, refused), out, by = run(events, held, Rules(base, tie, ties, keeps, since_rank), base + further)
    try:
        expected = fold(events, held, tie, ties, keeps)
    except Tied:
        assert refused >= 0
        return
    assert refused == -1
    assert dict(enumerate(out.verdict.tolist())) == expected.verdict
    assert dict(enumerate(out.winner.tolist())) == expected.winner
    pairs = zip(out.update_rank[:updates].tolist(), out.update_source[:updates].tolist(), strict=True)
    assert list(pairs) == expected.updates
    places = out.version_place[:versions].tolist()
    made = list(zip(out.version_event[:versions].tolist(), out.version_row[:versions].tolist(), strict=True))
    groups = [events[by[place]].group for place in places]
    assert groups == sorted(groups) == [events[event].group for event, _ in made]
    assert_history(events, held, made, groups, expected, keeps, since_rank)
    old = [group for (event, _), group in zip(made, groups, strict=True) if events[event].rank <= since_rank]
    assert len(old) == len(set(old))  # history before since is not kept apart
    for group, last in enumerate(out.last.tolist()):
        mine = [i for i, g in enumerate(groups) if g == group]
        assert last == (mine[-1] if mine else -1)


def assert_history(events: list[Event], held: list[State], made: list[tuple[int, int]], groups: list[int],
                   expected: Outcome, keeps: bool, since_rank: int) -> None:  # fmt: skip
    """The versions, and what was held before them, say what each key holds after every time from since on."""
    for (group, rank), state in expected.history.items():
        if rank < since_rank:
            continue
        mine = [(events[event], row) for (event, row), g in zip(made, groups, strict=True) if g == group]
        seen = [(event, row) for event, row in mine if event.rank <= rank]
        if not seen:
            assert state.live == held[group].live
            assert not state.live or (state.reference, state.value) == (held[group].reference, held[group].value)
            assert not keeps or (state.base, state.further) == (held[group].base, held[group].further)
            continue
        event, row = seen[-1]
        assert event.gone != state.live
        assert not state.live or (row, event.value) == (state.reference, state.value)
        assert not keeps or (event.base, event.further) == (state.base, state.further)


@given(st.data(), st.sampled_from([LAST, FIRST, GREATEST]), st.booleans())
def test_nobody_needs_to_ask_for_winners(data: st.DataObject, tie: int, keeps: bool) -> None:
    events, held, base, further = data.draw(steps(tie))
    rules = Rules(base, tie, True, keeps, 0)
    counts, out, _ = run(events, held, rules, base + further)
    same, silent, _ = run(events, held, rules, base + further, winners=False)
    assert silent.winner.size == 0 and counts == same
    assert silent.verdict.tolist() == out.verdict.tolist()
    assert silent.update_source[: counts[0]].tolist() == out.update_source[: counts[0]].tolist()


def test_a_row_that_comes_and_goes_in_one_step_leaves_both_its_updates() -> None:
    events = [Event(0, 0, 0, (), (), False, 1), Event(1, 0, 1, (), (), True, 1), Event(2, 0, 2, (), (), True, 2)]
    (updates, versions, refused), out, _ = run(events, [State()], Rules(0, LAST, True, False, -1), 0)
    assert (updates, versions, refused) == (2, 2, -1)
    assert out.update_source[:2].tolist() == [0, RETRACTED]
    assert out.verdict.tolist() == [APPLIED, APPLIED, NOOP]


def test_a_delete_of_an_absent_key_is_kept_where_an_older_insert_may_come() -> None:
    events = [Event(0, 0, 0, (5,), (), True, 1)]
    (updates, versions, _), out, _ = run(events, [State()], Rules(1, LAST, True, True, 0), 1)
    assert (updates, versions, out.verdict.tolist()) == (0, 1, [NOOP])
    (updates, versions, _), out, _ = run(events, [State()], Rules(1, LAST, True, False, 0), 1)
    assert (updates, versions, out.verdict.tolist()) == (0, 0, [NOOP])

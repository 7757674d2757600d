"""Test that resolving follows the rules event by event: winners, changes, and every verdict."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from chance import effort
from hypothesis import given, strategies as st

from ddflow.kernels.emit import count_updates, emit_updates, emit_values, map_ranks_to_times, mark_times_and_deletes
from ddflow.kernels.identity import mix_words
from ddflow.kernels.resolve import (
    APPLIED,
    BAD,
    ERROR,
    FIRST,
    GREATEST,
    LAPSED,
    LAST,
    LATE,
    LIVE,
    NOOP,
    NOTHING,
    OCCUPIED,
    OUTCOME,
    RETRACTS,
    ROW,
    STALE,
    SUPERSEDED,
    TIE_LOST,
    Outcomes,
    Prior,
    Rules,
    SortedEvents,
    allocate_outcomes,
    resolve_keys,
)

pytestmark = pytest.mark.kernels
Words = tuple[int, ...]
Update = tuple[int, int, int, int]
"""The event that causes it, the row it is about, the diff, the rank of its time."""
TIMES = (5, 6, 9)


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
    """What must come out; updates in the order of rows."""

    verdict: dict[int, int] = field(default_factory=dict)
    winner: dict[int, int] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    history: dict[tuple[int, int], State] = field(default_factory=dict)


class Found(NamedTuple):
    """What came out, its columns cut to their counts."""

    refused: int
    live_added: int
    tombstones_added: int
    verdict: list[int]
    winner: list[int]
    updates: list[Update]
    counts: list[int]
    versions: list[Version]
    last: list[int]


class Version(NamedTuple):
    """A version as it is written."""

    high: int
    low: int
    time: int
    live: bool
    value: int
    event: int
    row: int


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
    out.updates.sort(key=lambda update: update[0])
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
    """What the key holds after ``best`` has won; writes its verdict and the updates, the retraction first."""
    changed = best.gone == state.live if best.gone or not state.live else best.value != state.value
    out.verdict[best.row] = APPLIED if changed else NOOP
    if changed and state.live:
        out.updates.append((best.row, state.reference & ROW, -1, best.rank))
    if changed and not best.gone:
        out.updates.append((best.row, best.row, 1, best.rank))
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


def identity(group: int, wide: bool) -> tuple[int, int]:
    """The identity of a group: two words, of which the first is shared by neighbours, or one."""
    return (group // 2, group) if wide else (group * 3, 0)


def run(
    events: list[Event],
    held: list[State],
    rules: Rules,
    words: int,
    winners: bool = True,
    wide: bool = False,
    times: tuple[int, ...] = TIMES,
    cuts: Sequence[int] = (),
    marked: Sequence[int] = (),
    timed: bool = True,
    ordered: bool = True,
) -> Found:
    """The outcome of the kernels: marked, resolved, spelled out.

    ``cuts``, ``marked``: numbers of keys, and of rows, where the spans begin that several threads would take.
    """
    by = sorted(range(len(events)), key=lambda i: (events[i].group, i))
    if rules.tie == ERROR:
        by.sort(key=lambda i: (events[i].group, events[i].rank, events[i].base, i))
    starts = [place for place, i in enumerate(by) if place == 0 or events[i].group != events[by[place - 1]].group]
    ids = [identity(events[i].group, wide) for i in by]
    before = np.zeros((len(held), words if rules.keeps else 0), np.int64)
    if rules.keeps:
        for i, state in enumerate(held):
            before[i] = (state.base + state.further) if state.reference else 0
    mark = np.empty(len(events), np.int32)
    gone = [event.gone for event in events] if any(event.gone for event in events) else []
    mark_times_and_deletes(
        np.array([times[event.rank] for event in events], np.int64), np.array(times), np.array(gone, np.uint8), mark
    )
    work = SortedEvents(
        np.array(by, np.int32),
        np.array([*starts, len(by)], np.int32),
        np.array([high for high, _ in ids], np.uint64),
        np.array([low for _, low in ids] if wide else [], np.uint64),
        mark,
        np.array(times, np.int64),
        np.array([event.base + event.further for event in events], np.int64).reshape(len(events), words),
        np.array([event.value for event in events], np.uint64),
    )
    now = Prior(
        np.zeros(len(held), np.int64),
        np.array([state.reference for state in held], np.int64),
        np.array([state.value for state in held], np.uint64),
        before,
    )
    out = allocate_outcomes(len(events), len(held), wide, winners, timed=timed, ordered=ordered)
    versions, last = list[Version](), list[int]()
    updates = live_added = tombstones_added = 0
    for begin, end in pairwise(sorted({0, *cuts, len(held)})):
        room = out.slice_versions(int(work.starts[begin]), int(work.starts[end]), begin, end)
        part = work._replace(starts=work.starts[begin : end + 1])
        more, n, refused, alive, dead = resolve_keys(part, now.slice_keys(begin, end), rules, room)
        if refused >= 0:
            return Found(refused, 0, 0, [], [], [], [], [], [])
        last += [place if place < 0 else place + len(versions) for place in room.last.tolist()]
        versions += written(room, n)
        updates, live_added, tombstones_added = updates + more, live_added + alive, tombstones_added + dead
    spelled, counts = spell(out, mark, updates, marked)
    for row, about, diff, _ in spelled:
        if diff < 0:  # the event has the hash of what it retracts
            was = events[about].value if about < len(events) else held[events[row].group].value
            assert work.value[row] == was
    return Found(
        -1,
        live_added,
        tombstones_added,
        ((out.outcome >> OUTCOME) & 7).tolist(),
        out.winner.tolist(),
        spelled,
        counts,
        versions,
        last,
    )


def written(out: Outcomes, n: int) -> list[Version]:
    nobody = np.zeros(out.high.size, np.int64)
    low, time, event = (column if column.size else nobody for column in (out.low, out.time, out.event))
    columns = (out.high, low, time, out.live, out.value, event, out.row)
    return [Version(*version) for version in zip(*(column[:n].tolist() for column in columns), strict=True)]


def spell(out: Outcomes, mark: Any, updates: int, cuts: Sequence[int] = ()) -> tuple[list[Update], list[int]]:
    """Updates and counts; the room is for as many as `resolve_keys` said, and each span fills what `count_updates` said
    it would."""
    spelled, counts, at = room(updates), np.zeros(8, np.int64), 0
    for begin, end in pairwise(sorted({0, *cuts, mark.size})):
        outcome, marked = out.outcome[begin:end], mark[begin:end]
        n = count_updates(outcome, marked)
        assert emit_updates(outcome, marked, np.int64(begin), *(column[at : at + n] for column in spelled), counts) == n
        at += n
    assert at == updates
    return listed(out.outcome, mark, spelled), counts.tolist()


def room(updates: int) -> list[Any]:
    """Where updates are written: sources, diffs, ranks."""
    return [np.empty(updates, np.int64), np.empty(updates, np.int64), np.empty(updates, np.int32)]


def listed(outcome: Any, mark: Any, spelled: list[Any]) -> list[Update]:
    """The updates that were spelled out, each with the event that caused it."""
    asserts = [(each >> OUTCOME) & 7 == APPLIED and gone & 1 == 0 for each, gone in zip(outcome, mark, strict=True)]
    rows = [row for row, each in enumerate(outcome) for _ in range(int(each < 0) + int(asserts[row]))]
    return list(zip(rows, *(column.tolist() for column in spelled), strict=True))


def assert_as_ruled(
    events: list[Event], held: list[State], rules: Rules, words: int, wide: bool, times: tuple[int, ...] = TIMES
) -> None:
    """All that came out is what the rulings say."""
    come = run(events, held, rules, words, wide=wide, times=times)
    try:
        expected = fold(events, held, rules.tie, rules.ties, rules.keeps)
    except Tied:
        assert come.refused >= 0
        return
    assert come.refused == -1
    assert dict(enumerate(come.verdict)) == expected.verdict
    assert dict(enumerate(come.winner)) == expected.winner
    assert come.updates == expected.updates
    assert come.counts == [come.verdict.count(verdict) for verdict in range(8)]
    groups = [events[version.event].group for version in come.versions]
    assert groups == sorted(groups)
    assert [version[:2] for version in come.versions] == [identity(group, wide) for group in groups]
    assert [version.time for version in come.versions] == [times[events[v.event].rank] for v in come.versions]
    assert len({version[:3] for version in come.versions}) == len(come.versions)
    assert_history(events, held, come.versions, groups, expected, rules, times)
    old = [group for version, group in zip(come.versions, groups, strict=True) if version.time <= rules.since]
    assert len(old) == len(set(old))  # history before since is not kept apart
    for group, last in enumerate(come.last):
        mine = [i for i, g in enumerate(groups) if g == group]
        assert last == (mine[-1] if mine else -1)
    after = {group: state for (group, _), state in sorted(expected.history.items())}
    assert come.live_added == sum(after[group].live - state.live for group, state in enumerate(held))
    tombstones_added = sum(is_tombstone(after[group]) - is_tombstone(state) for group, state in enumerate(held))
    assert come.tombstones_added == (tombstones_added if rules.keeps else 0)


def is_tombstone(state: State) -> bool:
    return not state.live and state != State()


def assert_history(
    events: list[Event],
    held: list[State],
    versions: list[Version],
    groups: list[int],
    expected: Outcome,
    rules: Rules,
    times: tuple[int, ...],
) -> None:
    """The versions, and what was held before them, say what each key holds after every time from since on."""
    for (group, rank), state in expected.history.items():
        following = [times[r] for g, r in expected.history if g == group and r > rank]
        if following and min(following) <= rules.since:
            continue
        mine = [version for version, g in zip(versions, groups, strict=True) if g == group]
        seen = [version for version in mine if version.time <= times[rank]]
        if not seen:
            assert state.live == held[group].live
            assert not state.live or (state.reference, state.value) == (held[group].reference, held[group].value)
            assert not rules.keeps or (state.base, state.further) == (held[group].base, held[group].further)
            continue
        event = events[seen[-1].event]
        assert bool(seen[-1].live) == state.live
        assert event.gone != state.live
        assert not state.live or (seen[-1].row, seen[-1].value) == (state.reference, state.value)
        assert not rules.keeps or (event.base, event.further) == (state.base, state.further)


@effort(250)
@given(
    st.data(),
    st.sampled_from([LAST, FIRST, GREATEST, ERROR]),
    st.booleans(),
    st.booleans(),
    st.integers(4, 10),
    st.booleans(),
)
def test_updates_verdicts_and_winners_are_those_of_the_rulings(
    data: st.DataObject, tie: int, ties: bool, keeps: bool, since: int, wide: bool
) -> None:
    events, held, base, further = data.draw(steps(tie))
    alone = not any(event.rank for event in events) and data.draw(st.booleans())
    rules = Rules(base, tie, ties, keeps, since)
    assert_as_ruled(events, held, rules, base + further, wide, TIMES[:1] if alone else TIMES)


@pytest.mark.parametrize("tie", [LAST, FIRST, GREATEST])
@pytest.mark.parametrize("keeps", [False, True])
def test_keys_by_the_dozen_are_judged_as_one_would_be(tie: int, keeps: bool) -> None:
    draw = random.Random(tie)
    ranks = sorted(draw.randrange(3) for _ in range(150))
    keys = [*range(60), *(draw.randrange(60) for _ in range(90))]
    draw.shuffle(keys)
    events = [
        Event(row, group, rank, (draw.randrange(3),), (), draw.random() < 0.3, draw.randrange(1, 3))
        for row, (group, rank) in enumerate(zip(keys, ranks, strict=True))
    ]
    held = []
    for i in range(60):
        live = draw.random() < 0.5
        reference = OCCUPIED | (LIVE if live else 0) | 3 << 40 | i
        held.append(State(reference, live, draw.randrange(1, 3), (draw.randrange(3),)) if i % 3 else State())
    assert_as_ruled(events, held, Rules(1, tie, True, keeps, 5), 1, keeps)


@given(st.data(), st.sampled_from([LAST, FIRST, GREATEST]), st.booleans())
def test_nobody_needs_to_ask_for_winners(data: st.DataObject, tie: int, keeps: bool) -> None:
    events, held, base, further = data.draw(steps(tie))
    rules = Rules(base, tie, True, keeps, 5)
    asked = run(events, held, rules, base + further)
    silent = run(events, held, rules, base + further, winners=False)
    assert silent.winner == [] and silent == asked._replace(winner=[])


@given(st.data(), st.sampled_from([LAST, FIRST, GREATEST]), st.booleans(), st.booleans(), st.booleans())
def test_nobody_needs_to_ask_for_the_times_and_events_of_versions(
    data: st.DataObject, tie: int, keeps: bool, timed: bool, ordered: bool
) -> None:
    events, held, base, further = data.draw(steps(tie))
    rules = Rules(base, tie, True, keeps, 9)
    asked = run(events, held, rules, base + further)
    silent = run(events, held, rules, base + further, timed=timed, ordered=ordered)
    expected = [v._replace(time=timed * v.time, event=ordered * v.event) for v in asked.versions]
    assert silent == asked._replace(versions=expected)


@given(st.data(), st.sampled_from([LAST, FIRST, GREATEST]), st.booleans(), st.booleans(), st.integers(4, 10))
def test_spans_of_keys_are_judged_and_spans_of_rows_spelled_out_as_all_at_once(
    data: st.DataObject, tie: int, keeps: bool, wide: bool, since: int
) -> None:
    events, held, base, further = data.draw(steps(tie))
    rules = Rules(base, tie, True, keeps, since)
    cuts = data.draw(st.lists(st.integers(0, len(held)), max_size=2))
    marked = data.draw(st.lists(st.integers(0, len(events)), max_size=3))
    whole = run(events, held, rules, base + further, winners=False, wide=wide)
    assert run(events, held, rules, base + further, winners=False, wide=wide, cuts=cuts, marked=marked) == whole


def test_a_row_that_comes_and_goes_in_one_step_leaves_both_its_updates() -> None:
    events = [Event(0, 0, 0, (), (), False, 1), Event(1, 0, 1, (), (), True, 1), Event(2, 0, 2, (), (), True, 2)]
    come = run(events, [State()], Rules(0, LAST, True, False, 4), 0)
    assert (come.refused, come.live_added, len(come.versions)) == (-1, 0, 2)
    assert come.updates == [(0, 0, 1, 0), (1, 0, -1, 1)]
    assert come.verdict == [APPLIED, APPLIED, NOOP]


def test_a_delete_of_an_absent_key_is_kept_where_an_older_insert_may_come() -> None:
    events = [Event(0, 0, 0, (5,), (), True, 1)]
    kept = run(events, [State()], Rules(1, LAST, True, True, 5), 1)
    assert (kept.updates, len(kept.versions), kept.tombstones_added, kept.verdict) == ([], 1, 1, [NOOP])
    dropped = run(events, [State()], Rules(1, LAST, True, False, 5), 1)
    assert (dropped.updates, len(dropped.versions), dropped.tombstones_added, dropped.verdict) == ([], 0, 0, [NOOP])


def test_a_delete_of_a_forgotten_key_is_a_noop_beside_the_retraction_that_is_due() -> None:
    held, older = [State(OCCUPIED | LIVE | LAPSED | 7, True, 1, (9,))], Event(0, 0, 0, (5,), (), True, 1)
    come = run([older], held, Rules(1, LAST, True, True, 5), 1)
    assert (come.updates, come.verdict, come.live_added, come.tombstones_added) == ([(0, 7, -1, 0)], [NOOP], -1, 1)
    quiet = run([older], held, Rules(1, LAST, True, True, 5, forgets=True), 1)
    assert (quiet.updates, quiet.verdict, quiet.live_added, quiet.tombstones_added) == ([], [NOOP], -1, 1)


def test_updates_are_in_the_order_of_rows_whatever_their_identities_and_a_retraction_comes_first() -> None:
    # The keys of the rows descend, so the order of identities is the other way round.
    held = [State(OCCUPIED | LIVE | 7 << 40 | i, True, 1) for i in range(3)]
    events = [Event(row, 2 - row % 3, row // 3, (), (), False, 2 + row) for row in range(6)]
    come = run(events, held, Rules(0, LAST, True, False, 4), 0)
    old = [7 << 40 | 2, 7 << 40 | 1, 7 << 40 | 0, 0, 1, 2]
    assert come.updates == [
        update for row in range(6) for update in ((row, old[row], -1, row // 3), (row, row, 1, row // 3))
    ]


codes = st.tuples(st.integers(0, 7), st.booleans(), st.integers(0, ROW), st.integers(0, 4), st.booleans())


@given(st.lists(codes, max_size=20), st.lists(st.integers(0, 9), min_size=8, max_size=8))
def test_what_retracts_or_is_applied_is_spelled_out_and_every_verdict_is_counted(
    drawn: list[tuple[int, bool, int, int, bool]], before: list[int]
) -> None:
    outcome, mark, expected = [], [], []
    for row, (verdict, retracts, old, rank, gone) in enumerate(drawn):
        retracts = retracts and verdict in (NOOP, APPLIED)
        outcome.append((RETRACTS if retracts else 0) | verdict << OUTCOME | (old if retracts else 0))
        mark.append(2 * rank + gone)
        expected += [(row, old, -1, rank)] * retracts + [(row, row, 1, rank)] * (verdict == APPLIED and not gone)
    spelled, counts = room(len(expected)), np.array(before)
    codes, marked = np.array(outcome, np.int64), np.array(mark, np.int32)
    assert count_updates(codes, marked) == len(expected)
    assert emit_updates(codes, marked, np.int64(0), *spelled, counts) == len(expected)
    assert listed(codes, marked, spelled) == expected
    column, out = np.arange(len(drawn), dtype=np.uint64) * 7, np.empty(len(expected), np.uint64)
    address, none, secret = np.uint64(column.ctypes.data), np.empty(0, np.uint64), (np.uint64(5), np.uint64(6))
    emit_values(codes, marked, address, none, *secret, out)
    assert out.tolist() == [7 * row for row, *_ in expected]
    held = column + np.uint64(1)
    mix_words(held, *secret, held)
    emit_values(codes, marked, address, held, *secret, out)
    assert out.tolist() == [7 * row + (diff < 0) for row, _, diff, _ in expected]
    verdicts = [verdict for verdict, *_ in drawn]
    assert counts.tolist() == [more + verdicts.count(verdict) for verdict, more in enumerate(before)]


def test_a_fate_holds_the_verdict_and_the_largest_reference() -> None:
    for verdict in range(BAD, APPLIED + 1):
        assert (verdict << OUTCOME >> OUTCOME) & 7 == verdict and 0 <= verdict << OUTCOME < 2**63
    outcome = np.array([RETRACTS | APPLIED << OUTCOME | ROW, LATE << OUTCOME], np.int64)
    spelled, counts = room(2), np.zeros(8, np.int64)
    assert emit_updates(outcome, np.zeros(2, np.int32), np.int64(7), *spelled, counts) == 2
    assert [column.tolist() for column in spelled] == [[ROW, 7], [-1, 1], [0, 0]]  # the span begins at row 7
    assert (counts[APPLIED], counts[LATE], counts.sum()) == (1, 1, 2)


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.booleans()), max_size=12),
    st.sets(st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.booleans(),
)
def test_rows_are_marked_by_the_rank_of_their_time_among_all_of_the_step_and_by_whether_they_delete(
    rows: list[tuple[int, bool]], others: set[int], deletes: bool
) -> None:
    rows.sort()
    distinct = sorted({time for time, _ in rows} | others)  # of other sources, too
    out, times = np.empty(len(rows), np.int32), np.array([time for time, _ in rows], np.int64)
    gone = np.array([gone for _, gone in rows] if deletes else [], np.uint8)
    mark_times_and_deletes(times, np.array(distinct, np.int64), gone, out)
    assert out.tolist() == [2 * distinct.index(time) + (deletes and gone) for time, gone in rows]
    back = np.empty(len(rows), np.int64)
    map_ranks_to_times(out >> 1, np.array(distinct, np.int64), back)
    assert back.tolist() == times.tolist()

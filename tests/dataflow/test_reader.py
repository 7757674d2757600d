"""Test holds of readers: the registry knows the least held time, and any thread may release a hold at any time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from chance import effort
from hypothesis import given, strategies as st
from messages import raises

from ddflow.dataflow.holds import HistoryHold, HistoryHolds
from ddflow.errors import TimeWentBack
from ddflow.time import CLOSED, NEVER

TIMES = st.one_of(st.integers(-5, 5), st.sampled_from([NEVER, NEVER + 1, 0, CLOSED - 1]))


@effort(200)
@given(st.data())
def test_the_least_time_is_the_least_of_all_that_are_held(data: st.DataObject) -> None:
    holds, times = HistoryHolds(), dict[HistoryHold, int]()
    for act in data.draw(st.lists(st.sampled_from(["add", "add", "advance", "let go"]), max_size=30)):
        if act == "add":
            time = data.draw(TIMES)
            times[holds.add_hold(time)] = time
        elif times:
            hold = data.draw(st.sampled_from([*times]))
            if act == "advance":
                times[hold] = data.draw(TIMES.filter(lambda to, at=times[hold]: to >= at))  # type: ignore[misc]
                holds.advance_hold(hold, times[hold])
            else:
                del times[hold]
                holds.release_hold(hold)
        assert holds.find_least_time() == min(times.values(), default=CLOSED)
        assert len(holds) == len(times)
        assert all(hold.time == time for hold, time in times.items())
        holds._check_invariants()


def test_no_claim_goes_back_and_a_refused_one_stays_where_it_was() -> None:
    holds = HistoryHolds()
    hold = holds.add_hold(5)
    with raises(TimeWentBack):
        holds.advance_hold(hold, 4)
    assert (hold.time, holds.find_least_time()) == (5, 5)
    holds.advance_hold(hold, 5)
    assert holds.find_least_time() == 5


def test_letting_go_twice_gives_up_one_claim_only() -> None:
    holds = HistoryHolds()
    one, _ = holds.add_hold(3), holds.add_hold(3)
    holds.release_hold(one)
    holds.release_hold(one)
    assert (len(holds), holds.find_least_time()) == (1, 3)


def test_a_claim_that_was_given_up_cannot_be_taken_up_again_by_advancing_it() -> None:
    holds = HistoryHolds()
    hold, other = holds.add_hold(3), holds.add_hold(9)
    holds.release_hold(hold)
    holds.advance_hold(hold, 4)
    assert (len(holds), holds.find_least_time()) == (1, 9)
    holds.advance_hold(other, 10)
    assert holds.find_least_time() == 10


def test_a_finalizer_may_let_go_while_the_registry_is_being_changed() -> None:
    holds = HistoryHolds()
    hold, other = holds.add_hold(3), holds.add_hold(4)
    with holds._lock:  # as when garbage is collected in the middle of a call: the lock is taken already
        holds.release_hold(hold)
    assert holds.find_least_time() == 4
    with holds._lock:
        holds.release_hold(other)
    assert len(holds) == 0


def test_very_many_claims_of_one_time_cost_no_more_than_those_of_many() -> None:
    holds = HistoryHolds()
    claims = [holds.add_hold(7) for _ in range(50_000)]
    for claim in claims:
        holds.advance_hold(claim, 8)
    for claim in claims[1:]:
        holds.release_hold(claim)
    assert (holds.find_least_time(), len(holds)) == (8, 1)


def test_many_threads_open_advance_and_let_go_at_once() -> None:
    holds, low = HistoryHolds(), HistoryHolds()
    kept = [low.add_hold(10) for _ in range(4)]

    def work(number: int) -> None:
        for i in range(500):
            hold = holds.add_hold(i)
            assert holds.find_least_time() <= i
            holds.advance_hold(hold, i + number)
            holds.release_hold(hold)
            low.advance_hold(kept[number], 10 + i)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()
    assert (len(holds), holds.find_least_time()) == (0, CLOSED)
    assert (len(low), low.find_least_time()) == (4, 509)
    holds._check_invariants()
    low._check_invariants()

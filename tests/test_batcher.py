"""Events that wait come out once, when their time closes, in the order of times and then of arrival."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ddflow.batcher import Batcher, Sealed, joined

Event = tuple[int, int]
"""Time and number of arrival."""


def run_of(events: list[Event]) -> Sealed:
    """A push's events as they arrive; their payload tells their number, their own time is one less."""
    times, numbers = (np.array([event[i] for event in events], np.int64) for i in (0, 1))
    batch = pa.record_batch({"n": pa.array(numbers), "l": [[number] for number in numbers.tolist()]},
                            pa.schema({"n": pa.int64(), "l": pa.list_(pa.int64())}))  # fmt: skip
    return Sealed(batch, times, times - 1, numbers)


def read(sealed: Sealed | None) -> list[Event]:
    """The events of a run, after a look at whether its columns still belong together."""
    if sealed is None:
        return []
    numbers = sealed.arrival.tolist()
    assert sealed.events.column("n").to_pylist() == numbers
    assert sealed.events.column("l").to_pylist() == [[number] for number in numbers]
    assert (sealed.original == sealed.times - 1).all()
    return list(zip(sealed.times.tolist(), numbers, strict=True))


actions = st.lists(st.one_of(
    st.lists(st.integers(-3, 12), max_size=6),
    st.integers(-4, 14),
), max_size=14)  # fmt: skip


@given(actions)
def test_every_event_is_released_once_by_the_first_seal_above_its_time_in_order(steps: list[Any]) -> None:
    batcher, pending, arrived, upper = Batcher(), list[Event](), 0, -10
    for step in steps:
        if isinstance(step, list):
            events = [(max(time, upper), arrived + i) for i, time in enumerate(step)]
            arrived += len(step)
            batcher.add(run_of(events))
            pending += events
        else:
            upper = max(upper, step)
            due = sorted(event for event in pending if event[0] < upper)
            assert read(batcher.peek(upper)) == due
            assert len(batcher) == len(pending)
            assert read(batcher.seal(upper)) == due
            assert batcher.seal(upper) is None
            pending = [event for event in pending if event[0] >= upper]
        batcher._check()
        assert len(batcher) == len(pending)
    assert read(batcher.seal(100)) == sorted(pending)
    assert len(batcher) == 0 and batcher.nbytes == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_runs_cut_at_any_time_are_joined_as_if_they_had_never_been_apart(times: list[int], data: st.DataObject) -> None:
    events = [(time, number) for number, time in enumerate(times)]
    whole, parts = run_of(events).in_order(), []
    cuts = sorted(data.draw(st.sets(st.integers(0, len(events)))) | {0, len(events)})
    for begin, end in pairwise(cuts):
        parts.append(whole.cut(begin, end))
    assert read(joined(data.draw(st.permutations(parts)))) == sorted(events)


def test_a_run_that_is_in_order_is_not_copied() -> None:
    run = run_of([(1, 0), (1, 1), (4, 2)])
    assert run.in_order() is run and joined([run]) is run
    cut = run.cut(1, 3)
    assert read(cut) == [(1, 1), (4, 2)]
    assert cut.events.column("n").buffers()[1].address == run.events.column("n").buffers()[1].address


def test_bytes_are_those_of_what_still_waits() -> None:
    batcher = Batcher()
    batcher.add(run_of([(time, time) for time in range(100)]))
    before = batcher.nbytes
    batcher.seal(90)
    assert 0 < batcher.nbytes < before / 5

"""Test temporary failures: the log's text and its times."""

from __future__ import annotations

import re

import pytest

from ddflow.engine.run.retry import Retry
from ddflow.errors import SinkFailed


def test_the_log_repeats_what_still_fails_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    retry = Retry("the sink of 'people'")
    error = SinkFailed("write", "connection refused\n\tIs the server running?", "see to it")
    clock, tried = 0.0, list[float]()
    while clock <= 400:
        if retry.is_due(clock):
            retry.record_failure(error, clock)
            tried.append(clock)
        clock += 0.01
    retry.record_success(clock)
    said = [each.getMessage() for each in caplog.records]
    assert not any("\n" in each or "\t" in each for each in said)
    assert said[0].startswith("the sink of 'people' fails, and ddflow retries it: write: connection refused Is the")
    assert said[-1] == "the sink of 'people' answers again after 400 s"
    form = re.compile("the sink of 'people' still fails after ([0-9]+) s, retry in ([0-9]+) s: write: connection")
    found = [form.match(each) for each in said[1:-1]]
    assert all(found)
    after, again = ([int(each[group]) for each in found if each] for group in (1, 2))
    assert max(again) == 30 and all(pause <= 5 for at, pause in zip(after, again, strict=True) if at < 300)
    gaps = [then - now for now, then in zip([0, *after], [*after, 400], strict=True)]
    assert 5 <= gaps[0] <= 10 and max(gaps) <= 100 and len(said) < len(tried)


def test_what_is_cancelled_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    retry = Retry("the sink of 'people'")
    with retry.watch_call("writes", lambda: None):
        retry.cancel_call()
        retry.cancel_call()
    retry.record_failure(SinkFailed("write", "canceling statement due to user request", "check the target"), 0.0)
    retry.give_up_if_overdue(9.0, 1.0)
    (said,) = caplog.messages
    assert said == "the sink of 'people' takes too long and is cancelled, because the run ends; the next run continues"


def test_what_is_back_is_soon_seen_and_a_slow_attempt_leaves_time_for_the_rest() -> None:
    error = SinkFailed("write", "no answer", "see to it")
    gaps, at, retry = dict[float, float](), 0.0, Retry("the sink of 'people'")
    while at < 600:
        retry.record_failure(error, at)
        gaps[at] = next(step / 20 for step in range(1, 1000) if retry.is_due(at + step / 20))
        at += gaps[at]
    assert max(gap for at, gap in gaps.items() if at < 300) <= 5.1 and 5.1 < max(gaps.values()) <= 30.1
    for took, pause in ((0.01, 0.05), (10, 10), (600, 30)):
        slow = Retry("the source 'people'")
        slow.record_failure(error, 0, took)
        assert not slow.is_due(took + pause - 0.01) and slow.is_due(took + pause)
        assert slow.describe_failure(took) == f"retry in {1 if pause < 1 else pause} s: no answer"
    assert Retry("the source 'people'").describe_failure(0) == ""

"""What fails for a while: what the log says of it, and when."""

from __future__ import annotations

import pytest

from ddflow.engine.trying import Trying
from ddflow.errors import SinkFailed


def test_the_log_repeats_what_still_fails_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    trying = Trying("the sink of 'people'")
    error = SinkFailed("write", "connection refused\n\tIs the server running?", "see to it")
    clock, tried = 0.0, list[float]()
    while clock <= 400:
        if trying.due(clock):
            trying.failed(error, clock)
            tried.append(clock)
        clock += 0.01
    trying.answered(clock)
    said = [each.getMessage() for each in caplog.records]
    assert not any("\n" in each or "\t" in each for each in said)
    assert said[0].startswith("the sink of 'people' fails, and is tried again: write: connection refused Is the server")
    assert said[-1] == "the sink of 'people' answers again, after 400 s"
    after = [int(each.partition(", after ")[2].partition(" s: ")[0]) for each in said[1:-1]]
    assert all(each.startswith("the sink of 'people' still fails, after") for each in said[1:-1])
    gaps = [then - now for now, then in zip([0, *after], [*after, 400], strict=True)]
    assert 5 <= gaps[0] <= 10 and max(gaps) <= 100 and len(said) < len(tried)

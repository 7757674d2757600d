"""Replay every fixed bug as its smallest trace, from `tests/found`.

The twin gives the expected result. A trace may also state its expected updates, in case the twin was wrong.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from doors import Result
from pair import Pair
from rules import canonical
from tight import tiny

HERE = Path(__file__).parent.parent / "found"
TRACES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(HERE.glob("*.json"))}


@pytest.mark.parametrize("name", TRACES)
def test_a_bug_that_was_found_stays_closed(name: str) -> None:
    trace = TRACES[name]
    options = trace.get("options", {})
    updates: dict[str, dict[Any, int]] = {}
    with tiny() if "medium" in options else nullcontext():
        pair = Pair(trace["scenario"], **options)
        for call in trace["calls"]:
            result = pair.play(call)
            for output, found in result.updates.items() if isinstance(result, Result) else ():
                updates.setdefault(output, {}).update(found)
        pair.close()
    for output, expected in trace.get("expected", {}).items():
        assert updates[output] == {(tuple(map(canonical, row)), time): diff for *row, time, diff in expected}


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_begins_with_its_story_in_two_lines(name: str) -> None:
    assert next(iter(TRACES[name])) == "story"
    assert len(TRACES[name]["story"]) == 2
    assert all(line.strip() for line in TRACES[name]["story"])


def test_the_folder_holds_traces_and_says_how_to_add_one() -> None:
    assert {path.suffix for path in HERE.iterdir()} <= {".json", ".md"}
    assert "story" in (HERE / "README.md").read_text("utf-8")

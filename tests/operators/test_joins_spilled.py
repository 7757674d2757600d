"""Test joins of steps larger than memory: both inputs are cut into the same ranges, and the result is the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from chance import covering, long_test
from hypothesis import event, given, strategies as st
from spark_session import counted
from test_partitions_joins import NAMES, epochs, flow_of
from tight import tighten, tiny


@long_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("time", [False, True], ids=["epochs", "times"])
def test_what_meets_is_cut_into_the_same_ranges(time: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    ways: Counter[str] = Counter()

    @covering(25)
    @given(epochs(time), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    def law(steps: list[dict[str, pa.Table]], names: list[str]) -> None:
        place = Path(tmp_path_factory.mktemp("spill"))
        with (
            flow_of(names, time, lateness=False).open() as plain,
            tiny() as seen,
            flow_of(names, time, lateness=False).open(memory="16MB", spill=place) as small,
        ):
            for number, inputs in enumerate(steps):
                tighten(small)
                engines = plain, small
                if time:
                    for engine in engines:
                        engine.push(inputs)
                    both = [engine.advance_to(number + 1) for engine in engines]
                else:
                    both = [engine.step(inputs, time=number) for engine in engines]
                for name in names:
                    assert counted(both[0][name]) == counted(both[1][name]), name
        ways.update(seen)
        event("ranges" if seen["updates brought into ranges"] else "whole")

    law()
    assert ways["updates brought into ranges"] > 20 and ways["a key found on disk"]

"""Test files that are verified in the background: no commit builds on a damaged file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import CorruptState, EngineClosed, SpecError


def plan() -> dd.Flow:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", {"id": pa.int64(), "v": pa.int64()}, dd.Upsert(key="id")))
    return flow


def made(state: Path) -> Path:
    """A state of one epoch; the file of its rows."""
    with plan().open(state) as engine:
        engine.step({"s": pa.table({"id": range(1000), "v": range(1000)})}, 1)
    with plan().open(state) as engine:
        [kept] = engine.dataflow.graph.inputs["s"].output_arrangement.slots.files.values()
        return state / "blobs" / str(kept.columns.blob.name)


def test_a_state_that_is_whole_goes_on(tmp_path: Path) -> None:
    made(tmp_path / "state")
    with plan().open(tmp_path / "state", verify="lazy") as engine:
        assert engine.read("rows").num_rows == 1000
        engine.step({"s": pa.table({"id": [1], "v": [7]})}, 2)
        assert engine.epoch == 2


@pytest.mark.parametrize("memory", [None, "16MB"])
def test_a_flipped_bit_is_found_before_the_first_commit(tmp_path: Path, memory: str | None) -> None:
    file = made(tmp_path / "state")
    data = bytearray(file.read_bytes())
    place = data.rindex(pa.array([999], pa.int64()).buffers()[1].to_pybytes())  # a value, which nothing else looks at
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptState, match=file.name):
        plan().open(tmp_path / "state", memory=memory)
    with plan().open(tmp_path / "state", memory=memory, verify="lazy") as engine:
        with pytest.raises(CorruptState, match=file.name):
            engine.step({"s": pa.table({"id": [1], "v": [7]})}, 2)
        with pytest.raises(EngineClosed):
            engine.read("rows")
    with pytest.raises(CorruptState, match=file.name):
        dd.read(tmp_path / "state", "rows")


def test_a_file_of_another_length_is_found_at_once(tmp_path: Path) -> None:
    file = made(tmp_path / "state")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptState, match=file.name):
        plan().open(tmp_path / "state", verify="lazy")


def test_the_choice_is_one_of_two() -> None:
    given: Any = "never"
    with raises(SpecError):
        plan().open(verify=given)

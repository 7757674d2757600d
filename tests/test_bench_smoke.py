"""The bench in a few seconds: all of its files can be imported, and ddflow and a peer give the known updates.

Its other tests run in a soak.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


def test_every_file_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    for path in sorted(BENCH.glob("*.py")):
        if "spark" not in path.stem:  # those import Spark; its tests do
            importlib.import_module(path.stem)
    assert "ours" in sys.modules


@pytest.mark.parametrize("contender", ["ddflow", "numpy-arrival"])
def test_a_contender_gives_the_known_updates(contender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setenv("DDFLOW_BENCH_DATA", str(tmp_path))
    contenders, workloads = map(importlib.import_module, ("contenders", "workloads"))
    tables = contenders.CONTENDERS[contender](workloads.load("tiny"), "upsert")
    found = workloads.Answer(sum(table.num_rows for table in tables), f"{workloads.checksum(tables):016x}")
    assert found == workloads.answer("tiny", "upsert")

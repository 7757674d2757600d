"""Test the flow from Debezium's messages into Delta Lake: its command works on landed files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import live_debezium
import polars as pl
import pytest
from chance import mid_test


def land(place: Path, table: str, *messages: dict[str, object]) -> None:
    """A file of messages, as the engine lands it."""
    folder = place / "landing" / f"shop.public.{table}"
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in messages))


@mid_test
def test_the_command_works_as_written(tmp_path: Path) -> None:
    made = {"op": "c", "source": {"lsn": 1}, "after": {"id": 1, "customer": 7, "amount": "AJY="}}
    gone = {"op": "d", "source": {"lsn": 3}, "before": {"id": 2}, "after": None}
    land(tmp_path, "orders", made, made | {"after": made["after"] | {"id": 2}, "source": {"lsn": 2}}, gone, made)  # type: ignore[operator]
    land(tmp_path, "customers", {"op": "r", "source": {"lsn": 1}, "after": {"id": 7, "city": "Bern"}})
    written = (live_debezium.HERE / "lake.py").read_text()
    (tmp_path / "lake.py").write_text(written)
    (command,) = re.findall(r"    (ddflow run (?:.*\\\n)*.*)", written)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    once = ["bash", "-euc", command.replace("--follow ", "")]
    done = subprocess.run(once, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (order,) = pl.read_delta(tmp_path / "lake" / "orders").to_dicts()
    assert (order["id"], str(order["amount"])) == (1, "1.50")
    (city,) = pl.read_delta(tmp_path / "lake" / "by_city").to_dicts()
    assert (city["city"], city["orders"], str(city["total"])) == ("Bern", 1, "1.50")


def test_without_an_engine_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_debezium, "programs", lambda: None)
    monkeypatch.setattr(sys, "argv", ["live_debezium.py"])
    assert live_debezium.main() == 2
    assert "apt install postgresql" in capsys.readouterr().err

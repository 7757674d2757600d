"""Test the README: its Python prints what it shows (a doctest), and every other block works.

Blocks are lines with an indent of four spaces. Shell blocks run with the files they name, and the feed's block runs as
Python. `tests/spark/test_spark_readme.py` runs Spark's block.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
from programs import run_python

import ddflow as dd

README = Path(__file__).parents[2] / "README.md"
DAYS = ["order_id,city,updated_at,op\n1,Bern,1,I\n17,Zug,2,I\n", "order_id,city,updated_at,op\n1,,3,D\n17,Chur,4,U\n"]


def blocks() -> list[str]:
    """The indented blocks, without their indentation."""
    found = re.findall(r"(?:^ {4}.*\n)+", README.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in found]


def of(first: str) -> str:
    """The one block that begins so."""
    (block,) = (block for block in blocks() if block.startswith(first))
    return block


def test_it_is_short_and_all_its_links_lead_somewhere() -> None:
    text = README.read_text("utf-8")
    assert text.count("\n") <= 130
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (README.parent / link).exists(), link


def test_the_shells_lines_do_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    for n, text in enumerate(DAYS, 1):
        (tmp_path / f"day{n}.csv").write_text(text)
        (tmp_path / "days" / f"{n}.csv.gz").write_bytes(gzip.compress(text.encode()))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", of("ddflow diff")], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    changes = pd.read_parquet(tmp_path / "changes.parquet")
    left = changes.groupby(["order_id", "city"])["_diff"].sum().to_dict()
    assert left == {(1, "Bern"): 0, (17, "Chur"): 1, (17, "Zug"): 0}
    assert dd.read(str(tmp_path / "state"), "output").num_rows > 0
    assert "17" in done.stdout


FEED = """
import ddflow as dd, pandas as pd
flow = dd.Flow()
flow.output("by_city", flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id")).count("city"))
batches = [pd.DataFrame({"id": [1, 2], "city": ["Bern", "Zug"]}), pd.DataFrame({"id": [1], "city": ["Zug"]})]
"""


def test_a_feed_is_committed_step_by_step(tmp_path: Path) -> None:
    for _ in range(2):  # and once more from the first batch on, as after a crash
        script = FEED + of("with flow.open")
        done = run_python(script, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert dd.read(str(tmp_path / "state"), "by_city").to_pylist() == [{"city": "Zug", "count": 2, "_diff": 1}]
    assert list((tmp_path / "changes").rglob("*.parquet"))

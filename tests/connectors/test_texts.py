"""Test text at the ends of blocks: every value of CSV and JSON is read unchanged.

Blocks are small in these tests, so that blocks end anywhere: within quotes, escapes, names and line ends.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

from ddflow.connectors.files import FileOptions, csv_reader, json_reader, open_files
from ddflow.connectors.files.kinds import Dialect
from ddflow.errors import UnreadableInput

NAMES = ["a", "b", "c d", "é", 'q"x']
TEXTS = ["", "x", "a,b", 'q"q', "l\nl", "é", "  s ", "\r\n", "\r", '""', '"', "\t;", "\\"]
VALUES: list[Callable[[random.Random], Any]] = [
    lambda draw: None,
    lambda draw: draw.random() < 0.5,
    lambda draw: draw.randrange(10**20),
    lambda draw: draw.random() * 10 ** draw.randrange(-300, 300),
    lambda draw: draw.choice(TEXTS),
    lambda draw: draw.choice([float("nan"), float("-inf"), "NaN", "[", '{"a":1}']),
]


@pytest.fixture(params=range(8))
def draw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> random.Random:
    drawn = random.Random(request.param)
    for module in (csv_reader, json_reader):
        monkeypatch.setattr(module, "SAMPLE", drawn.choice([250, 300, 700]))
    return drawn


def rows(path: Path, names: list[str], **how: Any) -> list[dict[str, Any]]:
    known = pa.schema([(name, pa.string()) for name in names])
    source = open_files([path], dict.fromkeys(names, "string"), known=known, how=FileOptions(**how))
    return [row for batch, _ in source.batches() for row in batch.to_pylist()]


@pytest.mark.drawn(5)
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_json_is_the_text_that_stands_there(ending: str, draw: random.Random, tmp_path: Path) -> None:
    for _ in range(60):
        given = [
            {name: draw.choice(VALUES)(draw) for name in draw.sample(NAMES, draw.randrange(5))}
            for _ in range(draw.randrange(1, 30))
        ]
        ways: dict[str, Any] = {
            "separators": draw.choice([(",", ":"), (", ", ": "), (" , ", " : ")]),
            "ensure_ascii": draw.random() < 0.5,
        }
        if ending == ".json":
            text = json.dumps(given, indent=draw.choice([None, 2]), **ways)
        else:
            text = "".join(json.dumps(row, **ways) + draw.choice(["\n", "\r\n", "\n\n"]) for row in given)
            text = draw.choice([text, text.rstrip()])
        (tmp_path / f"a{ending}").write_text(text, encoding="utf-8", newline="")
        meant = [
            {name: v if (v := row.get(name)) is None or isinstance(v, str) else json.dumps(v) for name in NAMES}
            for row in given
        ]
        assert rows(tmp_path / f"a{ending}", NAMES) == meant, text


def test_csv_is_the_text_that_stands_there(draw: random.Random, tmp_path: Path) -> None:
    """Story: where a block ended between the two bytes of a line's end within quotes, Arrow left the second one out."""
    for _ in range(60):
        given = [[draw.choice(TEXTS) for _ in range(3)] for _ in range(draw.randrange(1, 30))]
        between, out = draw.choice([",", ";", "\t"]), io.StringIO(newline="")
        # Python quotes a carriage return where it needs to be only among lines that end with one.
        quoting, ends = draw.choice([(csv.QUOTE_ALL, "\n"), (csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_MINIMAL, "\r\n")])
        writer = csv.writer(out, delimiter=between, quoting=quoting, lineterminator=ends)
        writer.writerows([["a", "b", "c"], *given])
        (tmp_path / "a.csv").write_text(out.getvalue(), encoding="utf-8", newline="")
        found = rows(tmp_path / "a.csv", ["a", "b", "c"], dialect=Dialect(between))
        assert [[value or "" for value in row.values()] for row in found] == given, out.getvalue()


def test_a_quote_that_is_not_closed_is_found_wherever_blocks_end(draw: random.Random, tmp_path: Path) -> None:
    for _ in range(60):
        before = draw.randrange(40)
        after = "".join(draw.choice(["x", "\n", ",", '""', "é"]) for _ in range(draw.randrange(100)))
        (tmp_path / "a.csv").write_text("k,v\n" + "1,2\n" * before + f'3,"{after}', encoding="utf-8")
        with raises(UnreadableInput):
            rows(tmp_path / "a.csv", ["k", "v"])

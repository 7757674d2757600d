"""Test that a terminal gets no control sequence from a file, a name, or another program's message.

Every verb runs on a real terminal. Values, columns, file names and output names contain sequences that would move the
cursor. The output must contain only the sequences of Rich itself.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from chance import long_test, mid_test
from demo_repos import Repo
from terminals import sent, until_closed
from test_cli import ROOT

import ddflow as dd
from ddflow.connectors.files import open_output
from ddflow.terminal import escape_lines, escape_text

EVIL = "a\x1b]0;owned\x07b\x9b2Jc\x7f\rd\x1b[31m"
SPELLED = r"a\x1b]0;owned\x07b\x9b2Jc\x7f\rd\x1b[31m"
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[012]?K|\x1b\[\d*A|\r")
"""Colours, hiding the cursor, wiping a line, going up, and to the line's beginning: what progress bars are made of."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a file, and a state, full of control characters."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def table() -> pa.Table:
    return pa.table({"id": pa.array([EVIL, EVIL + "2"]), EVIL: [EVIL, "[red]x"]})


def evil_file(name: str = f"{EVIL}.parquet") -> str:
    with open_output(name, table().schema) as out:
        out.write(table())
    return name


def evil_state() -> str:
    flow = dd.Flow()
    rows = flow.upserts(EVIL, table().schema, dd.Upsert("id"))
    flow.output(f"out {EVIL}", rows)
    with flow.open(f"state {EVIL}") as engine:
        engine.step({EVIL: table()}, 1)
    return f"state {EVIL}"


ENVIRONMENT = os.environ | {"TERM": "xterm-256color", "COLUMNS": "300"}


def shown(*words: str, code: int = 0) -> str:
    """What a terminal gets from a command, if that ends with the code."""
    return harmless(*sent(*words, term="xterm-256color", columns=300), code)


def shown_by(program: Sequence[str | Path], *words: str, code: int = 0) -> str:
    """The same of a program."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*program, *words], stdout=theirs, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    got = until_closed(ours)
    return harmless(process.wait(timeout=120), got, code)


def harmless(ended: int, got: str, code: int) -> str:
    """What was shown, without what Rich draws with; it holds no other control character."""
    text = OWN.sub("", got)
    assert ended == code, text
    left = [c for c in text if not c.isprintable() and c != "\n"]
    assert not left, (left, text)
    assert "owned\n" not in text
    return text


def test_a_preview_and_printed_rows_spell_control_characters_out() -> None:
    name = evil_file()
    text = shown("diff", name, "--key", "id")
    assert text.count(SPELLED) >= 4  # two keys, a column, a value, and the file's name below
    assert f"2 rows of {SPELLED}.parquet in 1 epoch" in text
    rows = [json.loads(line) for line in shown("diff", name, "--key", "id", "-o", "-").splitlines()[:2]]
    assert [row["id"] for row in rows] == table()["id"].to_pylist()  # the values are the same
    assert rows[0][EVIL] == EVIL


@mid_test
def test_what_is_written_to_files_stays_as_it_is() -> None:
    name = evil_file()
    for ending in (".csv", ".jsonl"):
        shown("diff", name, "--key", "id", "-o", f"out{ending}")
        text = Path(f"out{ending}").read_text()
        assert "\x9b2J" in text
        shown("diff", f"out{ending}", "--key", "id", code=1)  # the columns of updates, which are refused


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["diff", "no {evil}.csv", "--key", "id"], 1),
        (["diff", "{evil}.xlsx", "--key", "id"], 1),
        (["diff", "bad{evil}.csv", "--key", "id"], 1),
        (["diff", "bad{evil}.csv", "--key", "id", "--debug"], 1),
        (["diff", "{file}", "--key", "no{evil}"], 1),
        (["diff", "{file}", "--key", "id", "--filter", "{evil}"], 1),
        (["diff", "{file}", "--key", "id", "--types", "id={evil}"], 1),
        (["diff", "{file}", "--key", "id", "-o", "{evil}/a.csv"], 1),
        (["diff", "--{evil}", "--key", "id"], 2),
        (["--{evil}"], 2),
        (["{evil}"], 2),
        (["diff", "{file}", "--key", "id", "--epoch", "{evil}"], 2),
        (["compare", "{file}", "other.parquet", "--key", "id"], 0),
        (["compare", "{file}", "{file}", "--key", "no{evil}"], 1),
        (["inspect", "{state}"], 0),
        (["watch", "{state}", "out {evil}", "--once"], 0),
        (["why", "{state}", "{evil}"], 0),
        (["why", "{state}", "{evil}", "{file}"], 0),
        (["verify", "{state}", "{file}"], 0),
        (["verify", "{state}", "other.parquet"], 1),
        (["fsck", "{state}"], 0),
        (["gc", "{state}"], 0),
        (["rollback", "{state}", "--list"], 0),
        (["rescale", "{state}", "--partitions", "1"], 0),
        (["export", "{state}", "-o", "folder{evil}"], 0),
        (["export", "{state}", "-o", "x{evil}.parquet"], 0),
    ],
)
def test_no_verb_lets_a_control_character_through(words: list[str], code: int) -> None:
    Path(f"bad{EVIL}.csv").write_text(f"id,n\n1,2\n{EVIL},{EVIL},{EVIL}\n")
    named = {"evil": EVIL, "file": evil_file(), "state": evil_state()}
    with open_output("other.parquet", table().schema) as out:
        out.write(table().slice(1))
    shown(*(word.format(**named) for word in words), code=code)


KEYED = ["--key", "id"]
READING = {
    "diff": ["orders.csv", *KEYED, "-o", "out.csv"],
    "count": ["orders.csv", *KEYED, "-o", "out.csv"],
    "replace": ["orders.csv", *KEYED, "-o", "out.csv"],
    "sql": ["select count(*) n from t", "t=orders.csv:key=id", "-o", "out.csv"],
    "compare": ["orders.csv", "orders.csv", *KEYED],
    "verify": ["state", "orders.csv"],
    "why": ["state", "1", "orders.csv"],
    "migrate": ["state", "new", "orders.csv", *KEYED, "--filter", "n > 1", "-o", "out.csv"],
    "export": ["state", "-o", "folder"],
    "fsck": ["state"],
    "rollback": ["state", "--yes"],
    "rescale": ["state", "--partitions", "3"],
    "evolve": ["state", "--types", "n=double"],
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("verb", READING)
def test_a_verb_that_reads_much_shows_how_much_and_how_fast(verb: str) -> None:
    rows = {"id": range(500), "n": [10] * 500}  # as many as give a rate above 0 on a busy machine
    Path("orders.csv").write_text("id,n\n" + "".join(f"{id},10\n" for id in rows["id"]))
    flow = dd.Flow()
    flow.output("[/out]", flow.upserts("[/in]", {"id": int, "n": int}, dd.Upsert("id")))
    with flow.open("state") as engine:
        for _ in range(2):
            engine.step({"[/in]": rows})
    assert re.search(r"[1-9][\d,.]* (rows|events|[KM]?B), [1-9][\d,.]* [KM]?\w+/s", shown(verb, *READING[verb]))


@long_test
def test_the_demo_of_a_repository_with_evil_names(tmp_path: Path) -> None:
    repo = Repo.new(tmp_path / f"repo{EVIL}")
    for change in "12":
        repo.write(f"{EVIL}.{EVIL}", change)
        repo.commit(EVIL)
    program = (sys.executable, ROOT / "examples" / "git" / "demo.py")
    words = ("--no-spark", "--out", f"out{EVIL}", "--repo")
    assert r"\x1b]0;owned" in shown_by(program, *words, str(repo.path))
    assert SPELLED in shown_by(program, *words, f"none{EVIL}", code=1)


def test_what_is_logged_and_warned_of_is_spelled_out() -> None:
    program = """
import logging, warnings
from ddflow.terminal import escape_logs
escape_logs()
logging.getLogger("ddflow").warning("at %s", "\\x1b[2J")
warnings.warn("at \\x9b2J")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("at \\x1b[2J\n") and "at \\x9b2J\n" in done.stderr
    assert logging.lastResort is not None and logging.lastResort.formatter is None  # in this process all is as it was


def test_text_goes_to_a_terminal_in_one_place_only() -> None:
    """Verbs and the demo print by `say`, or on a console that spells control characters out."""
    for path in [*(ROOT / "ddflow" / "cli").glob("*.py"), *(ROOT / "examples" / "git").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("print", "typer.echo", "typer.secho", "Console") or path.name == "say.py", path
            assert not called.endswith(("stdout.write", "stderr.write", "print_exc")), path


def test_a_text_without_control_characters_is_the_same() -> None:
    for text in ("Zürich 日本 😀 [red] \\x1b", ""):
        assert escape_text(text) == text
    assert escape_lines("a\n\tb\u202e\udcff") == "a\n\\tb\\u202e\\udcff"
    assert escape_text(escape_lines(EVIL)) == escape_lines(EVIL) == SPELLED


def test_rows_wider_than_the_terminal_are_shown_value_by_value() -> None:
    flow = dd.Flow()
    flow.output("all", flow.upserts("rows", {f"column_{n}": int for n in range(40)}, dd.Upsert("column_0")))
    with flow.open("state"):
        pass
    said = [line.rstrip() for line in OWN.sub("", shown("inspect", "state")).splitlines()]
    assert said[said.index("rows") + 1].startswith("  columns  column_0 int64, column_1 int64,")
    assert any(re.search(r"^ written .*, \d+ s ago$", line) for line in said)

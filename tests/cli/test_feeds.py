"""Test feeds that change from day to day, on the shell: the final contents equal those of a dict.

A seed generates each feed: some days of rows, and one kind of change that real feeds have. The feed is read in one run,
and in runs that continue a state from any point.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from chance import mid_test, sample
from test_cli import folder, run

import ddflow as dd

__all__ = ["folder"]

Row = dict[str, str | None]
CHANGES = ("added", "renamed", "dropped", "widened", "texts", "conflict", "header", "duplicates", "mark", "moved")
NAMES = ["Bern", 'say "hi"', "Zürich, ZH", "two\nlines", "007", " x "]


class Feed:
    """Days of rows, as texts; ``bad`` days cannot be read, ``doubled`` ones name a key twice."""

    def __init__(self, change: str, seed: int) -> None:
        draw = random.Random(f"{change} {seed}")
        self.change, self.days = change, list[list[Row]]()
        self.columns: list[list[str]] = []
        self.at = draw.randrange(1, 5)
        for day in range(6):
            changed = day >= self.at
            names = ["id", "n", "name"]
            if changed and change == "added":
                names.insert(draw.randrange(4), "extra")
            if changed and change == "renamed":
                names[2] = "label"
            if changed and change == "dropped":
                names.remove("n")
            if change == "moved":
                draw.shuffle(names)
            keys = draw.sample(range(12), k=draw.randrange(3, 9))
            if day == self.at and change == "duplicates":
                keys.append(keys[0])
            if day == self.at and change == "header":
                keys = []
            self.columns.append(names)
            self.days.append([self._row(draw, key, names, changed) for key in keys])

    def _row(self, draw: random.Random, key: int, names: list[str], changed: bool) -> Row:
        number = str(draw.randrange(1000))
        if changed and self.change == "widened":
            number += f".{draw.randrange(10)}"
        if changed and self.change == "texts":
            number = f"A-{number}"
        row: Row = {"id": str(key), "n": number, "name": draw.choice(NAMES), "label": draw.choice(NAMES), "extra": "5"}
        return {name: None if name != "id" and draw.random() < 0.2 else row[name] for name in names}

    def is_bad(self, day: int, verb: str) -> bool:
        """Whether a day is left out."""
        whole = verb == "replace"
        return day == self.at and self.change in ("conflict", *(("header", "duplicates") if whole else ()))

    def write(self, ending: str) -> list[str]:
        """The files, a day each."""
        files = []
        for day, (names, rows) in enumerate(zip(self.columns, self.days, strict=True)):
            text = as_csv(names, rows) if ending == ".csv" else as_json(rows)
            if self.is_bad(day, "diff"):
                lines = text.splitlines(keepends=True)
                lines[2:2] = ["<<<<<<< HEAD\n", lines[1], "=======\n", lines[-1], ">>>>>>> feed\n"]
                text = "".join(lines)
            mark = "\ufeff" if self.change == "mark" and day >= self.at else ""
            Path(f"{day}{ending}").write_text(mark + text, encoding="utf-8", newline="")
            files.append(f"{day}{ending}")
        return files

    def contents(self, verb: str) -> Counter[tuple[Any, ...]]:
        """What a dict holds after all days."""
        held: dict[str, Row] = {}
        for day, rows in enumerate(self.days):
            if not self.is_bad(day, verb):
                held = ({} if verb == "replace" else held) | {str(row["id"]): row for row in rows}
        return Counter(map(plain, held.values()))


def as_csv(names: list[str], rows: list[Row]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_MINIMAL)
    writer.writerow(names)
    writer.writerows([row[name] or "" for name in names] for row in rows)
    return out.getvalue()


def as_json(rows: list[Row]) -> str:
    """Numbers as numbers, all else in quotes; a null is written, or left out."""
    lines = []
    for number, row in enumerate(rows):
        members = []
        for name, text in row.items():
            bare = name in ("id", "n", "extra") and is_number(text)
            if text is not None or number % 3:
                members.append(f'"{name}": {text if bare else json.dumps(text, ensure_ascii=number % 2 == 0)}')
        lines.append(f"{{{', '.join(members)}}}\n")
    return "".join(lines) or "\n"


def is_number(text: str | None) -> bool:
    return text is not None and text[:1].isdigit()


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row without its nulls, numbers as such: of whatever type a column is, and whether or not it is there."""

    def value(given: Any) -> Any:
        text = str(given)
        return float(text) if is_number(text) and text != "007" else text

    return tuple(sorted((name, value(given)) for name, given in row.items() if given is not None))


def accumulated(outputs: list[str]) -> Counter[tuple[Any, ...]]:
    """What the updates in some files add up to."""
    held: Counter[tuple[Any, ...]] = Counter()
    for line in (line for name in outputs for line in Path(name).read_text().splitlines()):
        row = json.loads(line)
        held[plain({name: given for name, given in row.items() if name not in ("_time", "_diff")})] += row["_diff"]
    assert min(held.values(), default=0) >= 0
    return +held


FEEDS = [*product(CHANGES, [".csv", ".jsonl"], ["diff", "replace"])]


@mid_test
@pytest.mark.sampled
@pytest.mark.parametrize(("change", "ending", "verb"), sample(FEEDS, 6, __name__))
def test_a_feed_that_changes_ends_as_a_dict_does(change: str, ending: str, verb: str) -> None:
    for seed in range(3):
        feed = Feed(change, seed)
        files, meant = feed.write(ending), feed.contents(verb)
        # A type that widens is declared where a run sees only what came before; a column may come later.
        types = {"widened": ["--types", "n=double"], "texts": ["--types", "n=string"]}.get(change, [])
        words = [verb, "--key", "id", "--skip-bad-files", "--overwrite"]
        done = run(*words, *files, "-o", "out.jsonl")
        assert accumulated(["out.jsonl"]) == meant, (change, seed)
        bad = [day for day in range(6) if feed.is_bad(day, verb)]
        assert [f"skipped {day}{ending}" in done.stderr for day in range(6)] == [day in bad for day in range(6)]
        draw, state, outputs, left = random.Random(seed), f"state{seed}", list[str](), list(range(6))
        while left:
            days = [left.pop(0) for _ in range(min(draw.randrange(1, 4), len(left)))]
            outputs.append(f"{state}-{len(left)}.jsonl")
            code = int(set(days) <= set(bad))  # nothing is left of such a run
            result = run(*words, *types, *(files[day] for day in days), "--state", state, "-o", outputs[-1], code=code)
            if code:
                assert not Path(outputs.pop()).exists() and "skipped" in result.stderr
        assert accumulated(outputs) == meant, (change, seed)
        kept = dd.read(state, "output").to_pylist()
        assert Counter(plain({n: v for n, v in row.items() if n != "_diff"}) for row in kept) == meant


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_line_says_which_columns_come_and_go(ending: str) -> None:
    files = Feed("renamed", 1).write(ending)
    at = Feed("renamed", 1).at
    said = run("diff", *files, "--key", "id", "-o", "out.csv").stderr
    first, more = f"{at}{ending}", 6 - at - 1
    rest = f" and {more} more" if more else ""
    assert f"columns: new 'label' ({first}); missing 'name' ({first}{rest})\n" in said
    said = run("diff", *files, "--key", "id", "-o", "no.csv", "--strict-columns", code=1).stderr
    assert f"the columns of the files: new 'label' ({first}); missing 'name' ({first}{rest}); fix the files" in said
    assert not Path("no.csv").exists()
    said = run("diff", *files[:at], "--key", "id", "--state", "s", "-o", "a.csv").stderr
    assert "columns:" not in said
    said = run("diff", *files[at:], "--key", "id", "--state", "s", "-o", "b.csv").stderr
    assert f"columns: new 'label' ({first}); missing 'name' ({first}{rest})\n" in said


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize("change", ["widened", "texts"])
def test_a_type_that_widens_after_a_state_says_what_to_type(change: str, ending: str) -> None:
    """What is said is typed, and the feed goes on to the same contents."""
    feed = Feed(change, 2)
    files, at = feed.write(ending), feed.at
    words = ["--key", "id", "--state", "s", "-o"]
    run("diff", *files[:at], *words, f"a{ending}")
    said = run("diff", *files[at:], *words, f"b{ending}", code=1).stderr
    assert f"{at}{ending}, " in said and "column 'n': " in said
    assert "does not fit the guessed type int64; fix it, or declare the type that fits: ddflow evolve s" in said
    line = said.split("that fits: ddflow ")[1].split(";")[0].split()
    assert line == ["evolve", "s", "--types", "n=double" if change == "widened" else "n=string"]
    run(*line)
    run("diff", *files[at:], *words, f"c{ending}")
    kept = dd.read("s", "output").to_pylist()
    assert Counter(plain({n: v for n, v in row.items() if n != "_diff"}) for row in kept) == feed.contents("diff")
    assert "agrees with its log" in run("verify", "s", *files).stdout


def test_a_key_that_widens_after_a_state_names_another_way() -> None:
    Path("a.csv").write_text("id,at\n1,1\n")
    Path("b.csv").write_text("id,at\nA-7,2\n")
    words = ["--key", "id", "--order-by", "at", "--state", "s", "-o"]
    run("diff", "a.csv", *words, "a.jsonl")
    said = run("diff", "b.csv", *words, "b.jsonl", code=1).stderr
    assert "the type that fits: ddflow migrate s NEW LOG... --whole --types id=string\n" in said
    run("migrate", "s", "t", "a.csv", "b.csv", *words[:4], "--whole", "--types", "id=string", "-o", "c.jsonl")
    assert {row["id"] for row in dd.read("t", "output").to_pylist()} == {"1", "A-7"}


def test_only_what_works_is_named_for_a_text_among_numbers() -> None:
    for name, rows in (("whole", "1,2"), ("part", "1,2.5"), ("both", "1,2.5\n2,k.A."), ("text", "1,k.A.")):
        Path(f"{name}.csv").write_text(f"id,kwh\n{rows}\n")
    for state, first, then, remedy in (
        ("a", "whole", "both", "evolve a --types kwh=string"),
        ("b", "whole", "part", "evolve b --types kwh=double"),
        ("c", "part", "text", "migrate c NEW LOG... --whole --types kwh=string"),
    ):
        run("replace", f"{first}.csv", "--key", "id", "--state", state, "-o", f"{state}-1.jsonl")
        words = ["replace", f"{then}.csv", "--key", "id", "--state"]
        said = run(*words, state, "-o", f"{state}-2.jsonl", code=1).stderr
        assert said.split("the type that fits: ddflow ")[1].split(";")[0].strip() == remedy
        if state != "c":
            run(*remedy.split())
            run(*words, state, "-o", f"{state}-3.jsonl")
    run("migrate", "c", "d", "part.csv", "--key", "id", *remedy.split()[4:], "-o", "d-1.jsonl")
    run("replace", "text.csv", "--key", "id", "--state", "d", "-o", "d-2.jsonl")
    assert {row["kwh"] for row in dd.read("d", "output").to_pylist()} == {"k.A."}


@mid_test
def test_a_state_that_grew_is_verified_by_all_of_its_files() -> None:
    for change in ("added", "renamed", "dropped", "moved"):
        files, state = Feed(change, 4).write(".csv"), f"s-{change}"
        for file in files:
            run("diff", file, "--key", "id", "--state", state, "-o", f"{state}-{file}")
        assert "agrees with its log" in run("verify", state, *files).stdout
        assert "its " in run("why", state, "3", *files).stdout
        run("migrate", state, f"{state}-new", *files, "--key", "id", "-o", f"{state}.jsonl")
        assert Path(f"{state}.jsonl").read_text() == ""

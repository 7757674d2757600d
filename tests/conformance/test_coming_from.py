"""Test the pages for users of other systems: every row has a test, and every named test exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent.parent
DOCS = HERE.parent / "docs"
ALL = {path.name: path.read_text("utf-8") for path in sorted((DOCS / "coming-from").glob("*.md"))}
COMPARISONS = {"duckdb-polars.md", "embedded-engines.md", "spark-structured-streaming.md"}
"""Pages that compare in text and by examples that run, not by a table of options."""
PAGES = {name: page for name, page in ALL.items() if name not in COMPARISONS}
TABLES = "\n".join(PAGES.values())
ROWS = [line for line in TABLES.splitlines() if line.startswith("| ")]
PROOF = re.compile(r"`(test_\w+|conformance): ([\w-]+)`")


def test_every_row_names_a_test_that_is_there() -> None:
    cases = {
        case["id"]
        for path in (HERE / "conformance").glob("*.json")
        if path.stem != "not_run"
        for case in json.loads(path.read_text("utf-8"))
    }
    heads = [line for line in ROWS if line.endswith("| shown by |")]
    assert len(heads) == len(PAGES) == 14 and len(ROWS) > 190
    assert all(page.startswith("# You come from ") and page.count("| shown by |") == 1 for page in PAGES.values())
    assert [line for line in ROWS if line not in heads and not PROOF.search(line.split(" | ")[-1])] == []
    for where, what in PROOF.findall(TABLES):
        if where == "conformance":
            assert what in cases, what
        else:
            assert f"\ndef {what}(" in next(HERE.rglob(f"{where}.py")).read_text("utf-8"), what


def test_every_option_of_ours_that_it_names_exists() -> None:
    import ddflow as dd

    spec = {name for each in (dd.Upsert, dd.Merge, dd.Expiry) for name in each.__dataclass_fields__}
    named = {name for line in ROWS for name in re.findall(r"\b([a-z_]+)=", line.split(" | ")[1])}
    calls = {"retain", "by", "as_of", "epoch", "valid_from", "valid_to", "on_conflict", "scope"}
    verbs = {"on", "how", "partition_by", "all", "diff"}
    runs = {"mode", "format", "slot", "interval", "rows", "give_up_after", "lines", "on_bad"}
    formats = {"flattened", "decimals", "unavailable"}
    users = {"n", "revenue", "big"}  # names of results and of collections
    assert named - spec == calls | verbs | runs | formats | users


def test_the_index_names_every_page() -> None:
    index = (DOCS / "coming-from.md").read_text("utf-8")
    assert sorted(re.findall(r"\(coming-from/([\w-]+\.md)\)", index)) == sorted(ALL)

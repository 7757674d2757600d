"""Test the pages of connectors: each source and sink has a page with an example, and the index names all."""

from __future__ import annotations

import re

from pages import DOCS

from ddflow.connectors import sinks, sources
from ddflow.connectors.address import SINKS, SOURCES

PAGES = {path.name: path.read_text("utf-8") for path in (DOCS / "connectors").glob("*.md") if path.stem != "index"}
INDEX = (DOCS / "connectors" / "index.md").read_text("utf-8")


def test_every_source_and_sink_has_a_page_with_an_example() -> None:
    for room, module in (("sources", sources), ("sinks", sinks)):
        for name in (each for each in module.__all__ if each.islower()):
            blocks = [block for page in PAGES.values() for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
            assert [block for block in blocks if f"dd.{room}.{name}(" in block], f"dd.{room}.{name}"


def test_the_index_names_every_page_and_how_each_is_written() -> None:
    assert sorted(re.findall(r"^\| \[[\w ]+\]\(([\w-]+\.md)\)", INDEX, re.MULTILINE)) == sorted(PAGES)
    assert {kind for kind in {*SOURCES, *SINKS} if f"`{kind}:" not in INDEX} == set()

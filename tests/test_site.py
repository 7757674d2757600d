"""Test the site: it builds without a warning, its reference has every public name, and its pictures are current."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import ddflow as dd
import spark_bridge
from ddflow.connectors import formats, sinks, sources

DOCS = Path(__file__).parent.parent / "docs"
REFERENCE = "\n".join(path.read_text("utf-8") for path in (DOCS / "api").glob("*.md"))


def test_it_is_built_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*words, "-d", str(tmp_path / "read"), DOCS, tmp_path / "html"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.relative_to(tmp_path / "html").as_posix() for path in (tmp_path / "html").rglob("*.html")}
    assert {"index.html", "search.html", "connectors/postgres.html", "_outside/CHANGELOG.html"} <= pages
    text = "\n".join(path.read_text("utf-8") for path in (tmp_path / "html").rglob("*.html"))
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?:[^"]+"', text) == []


def test_every_public_name_is_in_the_reference() -> None:
    shown = set(re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)", REFERENCE, re.MULTILINE))
    names = {f"ddflow.{name}" for name in dd.__all__} | {f"spark_bridge.{name}" for name in spark_bridge.__all__}
    for room, module in (("sources", sources), ("sinks", sinks), ("formats", formats)):
        names |= {f"ddflow.{room}.{name}" for name in module.__all__ if name.islower()}
    aside = {"ddflow.DdflowError", "ddflow.__version__"}  # errors have a page of their own
    assert names - shown == aside, "give each a line in docs/api"


def test_pictures_are_as_they_are_drawn() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        import draw
    finally:
        sys.path.remove(str(DOCS))
    assert {path.stem: path.read_text("utf-8") for path in (DOCS / "pictures").glob("*.svg")} == {
        name: picture().svg() for name, picture in draw.PICTURES.items()
    }


def test_the_reference_lists_the_members_that_users_call_and_no_others() -> None:
    """Those are written in numpydoc's sections; what an operator or a room asks for has one line, and no place here."""
    blocks = re.findall(r"^\.\. autoclass:: ddflow\.(\w+)\n   :members: (.+)$", REFERENCE, re.MULTILINE)
    assert {name for name, _ in blocks} >= {"Flow", "Collection", "Engine", "Snapshot", "Reader"}
    for name, listed in blocks:
        of, members = getattr(dd, name), listed.split(", ")
        assert [each for each in members if not hasattr(of, each)] == []
        documented = {
            each for each in dir(of) if not each.startswith("_") and "\n--" in (inspect.getdoc(getattr(of, each)) or "")
        }
        assert documented - set(members) == set(), f"list them under {name} in docs/api, or write one line of each"

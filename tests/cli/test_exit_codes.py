"""Test that each documented exit code occurs, and that the documentation lists no other exit codes."""

from __future__ import annotations

import re

import pytest
from test_cli import ROOT, STOPS
from typer.testing import CliRunner

from ddflow.cli import NO_READER, app

GIVEN = {
    0: ["errors", "NullKey"],
    1: ["fsck", "no such folder"],
    2: ["errors", "--no-such-option"],
    70: ["errors"],
    130: ["errors"],
}
"""Verbs that end so; those that a bug or Ctrl-C ends are broken by the test."""
BROKEN = {70: TypeError("no length"), 130: KeyboardInterrupt()}
LISTED = {
    "docs/cli.md": r"^\| (\d+) \|",
    "ddflow/cli/__init__.py": r"\b(\d+) (?:done|refused|wrong usage|a bug in|interrupted|the reader|terminated)\b",
}


@pytest.mark.parametrize("code", GIVEN)
def test_it_is_given(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise BROKEN[code]

    if code in BROKEN:
        monkeypatch.setattr("ddflow.cli.errors.errors", broken)
    done = CliRunner().invoke(app, GIVEN[code])
    assert done.exit_code == code and ("Traceback" in done.output) is False
    assert (done.stderr == "") is (code == 0)


@pytest.mark.parametrize("where", LISTED)
def test_those_that_are_listed_are_tested(where: str) -> None:
    """Signals and a reader that goes are tested with a process of their own, in test_cli."""
    codes = {int(code) for code in re.findall(LISTED[where], (ROOT / where).read_text("utf-8"), re.MULTILINE)}
    assert codes == {*GIVEN, NO_READER, *(code for _, code, _ in STOPS)}

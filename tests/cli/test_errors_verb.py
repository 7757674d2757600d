"""Test the index of errors: it has every error class with its meaning and fix, and the shell prints the index."""

from __future__ import annotations

import json

from typer.testing import CliRunner

import ddflow.errors
from ddflow.cli import app
from ddflow.errors import GROUPS, parse_error_entry

EVERY = [each for of in GROUPS.values() for each in of]


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["errors", *words])
    return done.exit_code, done.output


def test_every_class_has_an_entry_and_one_place() -> None:
    assert len(EVERY) == len(set(EVERY)) > 50
    assert sorted(each.__name__ for each in EVERY) == sorted({*ddflow.errors.__all__} - {"DdflowError", "cut"})
    for each in EVERY:
        found = parse_error_entry(each)
        assert found.means.endswith(".") and found.more.endswith(".") and found.fix.endswith("."), each
        assert f"\n\nRemedy: {found.fix[:20]}" in (ddflow.errors.inspect.getdoc(each) or ""), each
        assert each.__module__ == "ddflow.errors" and getattr(ddflow.errors, each.__name__) is each


def test_the_shell_prints_one_or_all() -> None:
    code, text = run("NullKey")
    assert code == 0 and text.startswith("NullKey: An event has no key") and "Remedy: set the key" in text
    assert run("ddflow.errors.NullKey") == (0, text)
    code, text = run()
    assert code == 0 and [each for each in EVERY if f"  {each.__name__} " not in text] == []
    assert {each["name"] for each in json.loads(run("--json")[1])} == {each.__name__ for each in EVERY}
    assert json.loads(run("Fenced", "--json")[1])["name"] == "Fenced"


def test_a_name_that_is_none_is_refused_with_the_nearest() -> None:
    code, text = run("NulKey")
    assert code == 1 and "there is no such class; did you mean NullKey?" in text

"""Test first contact on the shell: bare ``ddflow`` teaches, Tab completes, and a bare install names what it needs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
import typer
from test_prose import PAGES
from typer.testing import CliRunner

from ddflow.cli import VERBS, WELCOME, app

COMMANDS = [line.strip() for line in WELCOME.splitlines() if line.startswith("    ddflow")]


def test_alone_it_says_what_to_try() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 0 and done.output == WELCOME + "\n"
    assert max(map(len, WELCOME.splitlines())) <= 80 and len(WELCOME.splitlines()) <= 24


@pytest.mark.parametrize("words", [[], *([verb] for verb in VERBS)], ids=lambda words: " ".join(words) or "ddflow")
def test_no_help_shows_a_type_of_python(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0 and "--help" in done.output
    assert re.findall(r"<[a-z\[\]]+>", done.output) == []


def understood(command: str) -> None:
    """Raises for an unknown verb or option, or too few words."""
    _, verb, *words = shlex.split(command)
    group = typer.main.get_command(app)
    group.get_command(typer.Context(group), verb).make_context(verb, words)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_it_says_to_try_is_understood(command: str) -> None:
    understood(command)


def test_every_command_of_a_page_is_understood() -> None:
    """What the tests do not run, with placeholders for names, has a verb and options that exist."""
    seen = 0
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))
        fenced = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        indented = re.findall(r"^(?:    |\$ )(ddflow [a-z].*)$", text, re.MULTILINE)
        for line in indented + re.findall(r"^(ddflow [a-z].*)$", fenced, re.MULTILINE):
            command = re.split(r"\s{3,}|\s+#\s", line)[0]  # before what is said of it
            understood(command)
            seen += 1
    assert seen > 70


def completed(words: str) -> list[str]:
    told = {"_DDFLOW_COMPLETE": "complete_bash", "COMP_WORDS": f"ddflow {words}", "COMP_CWORD": str(len(words.split()))}
    program = [sys.executable, "-c", "import sys; sys.argv[0] = 'ddflow'; from ddflow.__main__ import main; main()"]
    done = subprocess.run(program, env={**os.environ, **told}, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_tab_completes_verbs_and_options() -> None:
    assert completed("re") == [verb for verb in sorted(VERBS) if verb.startswith("re")]
    assert completed("watch --b") == ["--by"]


def test_without_the_shell_s_libraries_it_says_what_to_install() -> None:
    hide = "import sys; sys.modules['typer'] = None; from ddflow.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", hide, "diff"], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'ddflow[shell]'" in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr


def test_every_verb_that_reports_has_json() -> None:
    for verb in VERBS:
        assert "--json" in CliRunner().invoke(app, [verb, "--help"]).output, verb

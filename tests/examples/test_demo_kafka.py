"""Test the Kafka demo without a broker: its printed commands run, and typed rows arrive."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import broker
import pages
import pytest
from chance import mid_test

import ddflow as dd
from ddflow.errors import DdflowError

PATH = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def started(command: str, folder: Path) -> subprocess.Popen[str]:
    to = subprocess.PIPE
    program = ["bash", "-euc", f"exec {command}"]
    return subprocess.Popen(program, cwd=folder, env=os.environ | PATH, stdin=to, stdout=to, stderr=to, text=True)


def held(state: Path) -> dict[str, int]:
    """What another process sees of the state."""
    try:
        return {row["city"]: row["n"] for row in dd.read(state, "by_city").to_pylist()}
    except DdflowError:  # the run has not made it yet
        return {}


def waits_for(state: Path, expected: dict[str, int]) -> None:
    ends = time.monotonic() + 120
    while held(state) != expected:
        assert time.monotonic() < ends, held(state)
        time.sleep(0.1)


@mid_test
def test_what_is_typed_arrives(tmp_path: Path) -> None:
    demo = started(f"{sys.executable} {broker.__file__}", tmp_path)
    assert demo.stdin is not None and demo.stdout is not None
    said = "".join(iter(demo.stdout.readline, broker.SAID.splitlines(keepends=True)[-1]))
    run, watch = re.findall(r"^    (ddflow .*)", said, re.MULTILINE)
    assert watch == "ddflow watch state by_city"
    following = started(run, tmp_path)
    try:
        filled = {"Bern": 10, "Brig": 6, "Chur": 7, "Thun": 6, "Visp": 7}
        waits_for(tmp_path / "state", filled)
        for line, answer in (("1 Sion", '"op": "u"'), ("6", '"op": "d"'), ("77", "no order 77"), ("x", "the number")):
            demo.stdin.write(f"{line}\n")
            demo.stdin.flush()
            assert answer in demo.stdout.readline()
        waits_for(tmp_path / "state", filled | {"Chur": 5, "Sion": 1})
    finally:
        for each in (following, demo):
            each.send_signal(signal.SIGINT)
            each.communicate(timeout=120)
    assert (following.returncode, demo.returncode) == (0, 130)


@pytest.mark.parametrize("name", ["run", "watch"])
def test_the_page_has_the_commands_that_it_prints(name: str) -> None:
    shell = "\n".join(pages.blocks("connectors/kafka.md", "sh"))
    (printed,) = re.findall(rf"    (ddflow {name} .*)", broker.SAID)
    for written, shown in (
        ("{flow}", "examples/kafka/orders.py"), ("{servers}", "127.0.0.1:PORT"), ("{topic}", broker.TOPIC)
    ):  # fmt: skip
        printed = printed.replace(written, shown)
    assert printed in shell.replace(" \\\n    ", " ")

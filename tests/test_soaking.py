"""Test soaks and seeds: a soak ends after its minutes with a report, and a seed repeats the draws of a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chance import sample, seeded
from hypothesis import given, strategies as st

ROOT = Path(__file__).parent.parent


def pytest_says(*words: str, **changes: str) -> tuple[int, str]:
    """Exit code and output of pytest in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **changes}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=300)
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_soak_ends_with_its_minutes_and_says_what_ran_and_what_did_not(workers: str) -> None:
    few = "tests/faults/test_store_power.py"
    code, said = pytest_says(few, "-m", "soak", "-n", workers, DDFLOW_SOAK="1", DDFLOW_MINUTES="0.03")
    assert code in (0, 5), said  # 5: the time was over before any test began
    found = re.search(r"(\d+) tests ran, (\d+) were cut short, (\d+) were not begun", said)
    assert found is not None, said
    ran, cut, left = map(int, found.groups())
    assert (ran + cut + left, left > 50, cut <= 2) == (100, True, True)
    assert f"  not begun: {few}::test_every_image_of_a_million_holds_the_last_epoch_or_the_next ({left} cases)" in said
    assert "failed" not in said.splitlines()[-1]


@given(st.integers(0, 2**60))
def test_what_is_drawn(number: int) -> None:
    if os.environ.get("DDFLOW_TELL"):
        print(f"drew {number}")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("case", range(90))
def test_cases_that_are_drawn(case: int) -> None:
    if os.environ.get("DDFLOW_TELL"):
        print(f"took {case}")


def test_a_seed_repeats_what_a_run_drew_and_another_does_not() -> None:
    def drawn(seed: str) -> tuple[list[str], list[str]]:
        tests = (f"{__file__}::{test}" for test in ("test_what_is_drawn", "test_cases_that_are_drawn"))
        code, said = pytest_says("-s", *tests, DDFLOW_SEED=seed, DDFLOW_TELL="1")
        assert code == 0 and f"DDFLOW_SEED={seed} draws the same again" in said
        return re.findall(r"drew (\d+)", said), re.findall(r"took (\d+)", said)

    (numbers, cases), again, (others, other_cases) = drawn("7"), drawn("7"), drawn("8")
    assert (numbers, cases) == again
    assert numbers != others and cases != other_cases
    assert len(numbers) >= 5 and len(cases) == len(other_cases) == 3


def test_samples_are_of_the_list_in_its_order_and_differ_by_purpose() -> None:
    taken = sample(range(1000), 20, "a")
    assert taken == sample(range(1000), 20, "a") == sorted(set(taken))
    assert seeded("a").random() == seeded("a").random() != seeded("b").random()

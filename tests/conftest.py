"""What every test shares: hypothesis' profile, the seed of the run, marks made by rule, and who runs what.

Each run draws anew (``chance``), and says its seed, so that a red run can be repeated.  Examples that failed are kept
in ``.hypothesis`` and tried first until they pass.  What a soak finds becomes a test of its own under ``tests/found``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import soaking
from chance import SEED, SHARE, SOAK, draw_for, effort
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
EXAMPLES = DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples")
SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ours", deadline=None, derandomize=False, database=EXAMPLES, print_blob=True, suppress_health_check=SLOW_IS_FINE
)
settings.load_profile("ours")
settings.register_profile("share", effort(50))  # of a property that names no number
settings.load_profile("share")


def pytest_report_header() -> str:
    """The seed, and how to repeat the run."""
    return f"{SHARE:g} of the examples{', all of the samples' if SOAK else ''}; DDFLOW_SEED={SEED} draws the same again"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what the test will draw."""
    draw_for(item.nodeid)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what needs Spark: it says so in its name, or by a fixture; the notebooks have a session of their own."""
    needs = {"spark", "alone"} & set(getattr(item, "fixturenames", ()))
    if needs or re.search("spark|notebook|test_java", item.nodeid):
        item.add_marker(pytest.mark.spark)


def pytest_configure(config: pytest.Config) -> None:
    """A soak ends with its minutes."""
    if SOAK:
        config.pluginmanager.register(soaking.Soak(config), "soaking")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A local Spark session of the module's own; it carries ``pytestmark = pytest.mark.together``."""
    from spark_session import session

    with session() as started:
        yield started


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the doctests of kernels, so that the runs with bounds checks and without the compiler include them; where
    several workers share the tests, begin with what takes one of them long."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and ROOT / "ddflow" / "kernels" in item.path.parents:
            item.add_marker(pytest.mark.kernels)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not together(item.nodeid.split("::")[0]))


class Together(LoadScopeScheduling):
    """Tests go to workers one by one, those of a module that is marked ``together`` all to one: what such a module sets
    up, a session of Spark or a cache of kernels, is then set up once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return path if together(path) else nodeid


@cache
def together(path: str) -> bool:
    """Whether a module is marked so; whoever shares out tests has not imported it."""
    return "pytestmark = pytest.mark.together" in (ROOT / path).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Share out tests so."""
    return Together(config, log)

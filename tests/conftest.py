"""What every test shares: the hypothesis profiles, the ``kernels`` mark on the kernels' doctests, who runs what.

``DDFLOW_SOAK=1`` draws many more examples, at random; without it a run is short and the same every time, so that a red
test is red for everybody.  What a soak finds becomes a test of its own under ``tests/found``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "fast", max_examples=50, deadline=None, print_blob=True, derandomize=True, suppress_health_check=SLOW_IS_FINE
)
settings.register_profile("soak", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("interpreted", settings.get_profile("fast"), max_examples=10)  # kernels as plain Python
if os.environ.get("DDFLOW_SOAK"):
    settings.load_profile("soak")
else:
    settings.load_profile("interpreted" if os.environ.get("NUMBA_DISABLE_JIT") == "1" else "fast")

ROOT = Path(__file__).parent.parent


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

"""What every test shares: the hypothesis profiles, the ``kernels`` mark on the kernels' doctests, who runs what.

``DDFLOW_SOAK=1`` draws many more examples, at random; without it a run is short and the same every time, so that a red
test is red for everybody.  What a soak finds becomes a test of its own under ``tests/found``.
"""

from __future__ import annotations

import os
import re
import sys
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
# A JVM of tests is young when it ends: the second compiler and the parallel collector cost it more than they give.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """The local Spark session that all such tests of a process share; a module leaves its settings as they were."""
    from spark_session import kept, shared

    with kept(shared()) as session:
        yield session


@pytest.fixture(scope="module")
def alone() -> None:
    """No Spark session is active in this process: for those who start one of their own."""
    from spark_session import stop_shared

    stop_shared()


@pytest.fixture(scope="session", autouse=True)
def _stopped_at_the_end() -> Iterator[None]:
    """Stop the shared session, if there is one."""
    yield
    if "spark_session" in sys.modules:
        sys.modules["spark_session"].stop_shared()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the doctests of kernels, so that the runs with bounds checks and without the compiler include them."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and ROOT / "ddflow" / "kernels" in item.path.parents:
            item.add_marker(pytest.mark.kernels)


class Together(LoadScopeScheduling):
    """Tests go to workers one by one, largest groups first; those of modules that are marked ``together`` with one name
    all to one worker: what such modules set up, a session of Spark or a cache of kernels, is then set up once."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.split("::")[0]) or nodeid


@cache
def group(path: str) -> str | None:
    """What a module is marked with; whoever shares out tests has not imported it."""
    found = re.search(r'^pytestmark = pytest.mark.together\("(\w+)"\)', (ROOT / path).read_text(), re.MULTILINE)
    return found and found[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Share out tests so."""
    return Together(config, log)

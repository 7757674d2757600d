"""What every test shares: hypothesis' profile, the seed of the run, marks made by rule, and who runs what.

Each run draws anew (``chance``), and says its seed, so that a red run can be repeated.  Examples that failed are kept
in ``.hypothesis`` and tried first until they pass.  What a soak finds becomes a test of its own under ``tests/found``.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import postgres_server
import prometheus_server
import pytest
import soaking
import spark_classes
from _pytest.doctest import DoctestModule
from chance import RECORD, SEED, SHARE, SOAK, draw_for, effort, sample
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
TESTS = Path(__file__).parent
# Tests import each other and their helpers by name, here and in the processes that they start.
FOLDERS = [
    str(each) for each in (TESTS, TESTS / "support", *sorted({path.parent for path in TESTS.glob("*/test_*.py")}))
]
sys.path[:0] = FOLDERS
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([*FOLDERS, str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
).rstrip(os.pathsep)
EXAMPLES = DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples")
SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ours", deadline=None, derandomize=False, database=EXAMPLES, print_blob=True, suppress_health_check=SLOW_IS_FINE
)
settings.load_profile("ours")
settings.register_profile("share", effort(50))  # of a property that names no number
settings.load_profile("share")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has its jobs in the background, and what those start
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("JDK_JAVA_OPTIONS", spark_classes.options())
# Else processes that tests start would fill the cache of kernels in the background, each anew until it is full.
os.environ.setdefault("DDFLOW_BACKGROUND", "0")
# Or each of the processes that tests start would compile the package from its source, and pytest every test.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Half of a run was spent waiting for a disk, which no test is about; a soak uses it.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30
if not SOAK and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


LACKING = postgres_server.lacking() | prometheus_server.lacking()
collect_ignore = list(LACKING)


NUMBER = count()
"""Of the tests of a process."""


def pytest_report_header() -> str:
    """The seed, and how to repeat the run."""
    left = "".join(f"without {each}: {remedy}\n" for each, remedy in LACKING.items())
    share = f"{SHARE:g} of the examples{', all of the samples' if SOAK else ''}"
    return f"{left}{share}; DDFLOW_SEED={SEED} draws the same again"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what the test will draw, and let no collection of garbage walk again through what earlier tests left."""
    draw_for(item.nodeid)
    if next(NUMBER) % 25 == 0:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Any:
    """No examples are looked for in files that have none: that took half of the time of collecting."""
    found = yield
    if file_path.suffix == ".py" and ">>>" not in file_path.read_text():
        return [each for each in found if not isinstance(each, DoctestModule)]
    return found


SPARK = re.compile("spark|notebook|test_java")
"""What stands in the names of tests that need Spark; the notebooks have a session of their own."""
SESSIONS = {"spark", "alone"}


SOAKS = re.compile(r"^pytestmark = pytest\.mark\.soak\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread that have none of the tests asked for: each worker would import them all."""
    wanted = config.option.markexpr
    if "not soak" not in wanted or collection_path.suffix not in (".py", ".md"):
        return None
    name = str(collection_path.relative_to(ROOT))
    if wanted == "not soak and not spark" and SPARK.search(name):
        return True
    text = collection_path.read_text()
    if SOAKS.search(text):
        return True
    if wanted != "spark and not soak" or SPARK.search(f"{name} {text}") or any(each in text for each in SESSIONS):
        return None
    return True


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what needs Spark: it says so in its name, or by a fixture."""
    if SESSIONS & set(getattr(item, "fixturenames", ())) or SPARK.search(item.nodeid):
        item.add_marker(pytest.mark.spark)
    if item.get_closest_marker("drawn"):
        item.add_marker(pytest.mark.sampled)


def pytest_configure(config: pytest.Config) -> None:
    """A soak ends with its minutes."""
    if SOAK:
        config.pluginmanager.register(soaking.Soak(config), "soaking")


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


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Share one process that forks lives of ``ddflow run``: it takes three seconds of CPU to start."""
    from lives import Lives

    return Lives(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Share one Postgres in each worker; a test that stops it starts it again."""
    made = postgres_server.Server()
    yield made
    made.close()


@pytest.fixture
def server(cluster: Any) -> Any:
    """The Postgres of this worker, without slots and tables."""
    cluster.empty()
    return cluster


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    """Share one mock of a Kafka cluster in each worker, by its addresses; each test has topics of its own."""
    from kafka_cluster import Cluster

    with Cluster() as servers:
        yield servers


@pytest.fixture(scope="session", autouse=True)
def _stopped_at_the_end() -> Iterator[None]:
    """Stop the shared session, if there is one."""
    yield
    if "spark_session" in sys.modules:
        sys.modules["spark_session"].stop_shared()


NO_KERNELS = ("cache", "store_s3", "store_local", "store_cache", "store_power", "store")
"""Files that begin first of all but Spark's: meanwhile the other worker's first group, ``warmup``, compiles the kernels
that are not kept yet.  Tests that call kernels would compile them a second time."""

LONGEST = ("spark_connect", "notebooks", "java", *NO_KERNELS, "durable_memory", "partitions_memory", "medium", "cli")
"""Files that begin first: a test of a minute that begins last leaves a core idle for as long."""


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of the cases of each test that is marked ``drawn(n)``, and of tests that have one ``of``, all but n."""
    lists: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        for mark in () if item.get_closest_marker("soak") else item.iter_markers("drawn"):
            name = mark.kwargs.get("of", item.nodeid.partition("[")[0])
            lists.setdefault((name, mark.args[0]), []).append(item)
    return {item for (name, most), each in lists.items() for item in {*each} - {*sample(each, most, "drawn", name)}}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first, and of tests that draw their cases those that are drawn, unless cases are asked for by name.
    Doctests of kernels are marked: the runs with bounds checks and without the compiler include them."""
    if not config.option.keyword and not RECORD and not any("[" in each for each in config.args):
        out = left_out(items)
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    for item in items:
        if isinstance(item, pytest.DoctestItem) and ROOT / "ddflow" / "kernels" in item.path.parents:
            item.add_marker(pytest.mark.kernels)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests are a million objects, which a test that collects its garbage need not walk through."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter free at its exit what was frozen, so that no library takes it for a leak."""
    gc.unfreeze()


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

"""Configure all tests: hypothesis' profile, the seed of the run, computed marks, and distribution to workers.

Each run draws new examples (`chance`) and prints its seed, so a failing run can be repeated. Failing examples stay in
``.hypothesis`` and run first until they pass. A failure in a soak becomes a test under `tests/found`.
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
# Tests import each other and their helpers by name, here and in the processes they start.
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
settings.register_profile("share", effort(50))  # for a property that names no number
settings.load_profile("share")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in background jobs of a shell and their children
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("JDK_JAVA_OPTIONS", spark_classes.options())
# Otherwise each process that a test starts would fill the kernel cache in the background.
os.environ.setdefault("DDFLOW_BACKGROUND", "0")
# Otherwise each process that a test starts would compile the package from source, and pytest every test.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Half of a run waited for the disk, which no test needs; a soak uses the disk.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30
if not SOAK and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


LACKING = postgres_server.lacking() | prometheus_server.lacking()
collect_ignore = list(LACKING)


NUMBER = count()
"""Counter of the process's tests."""


def pytest_report_header() -> str:
    """Print the seed and how to repeat the run."""
    left = "".join(f"without {each}: {remedy}\n" for each, remedy in LACKING.items())
    share = f"{SHARE:g} of the examples{', all of the samples' if SOAK else ''}"
    return f"{left}{share}; DDFLOW_SEED={SEED} draws the same again"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the test's draws; collect and freeze garbage every 25 tests, so that later collections are short."""
    draw_for(item.nodeid)
    if next(NUMBER) % 25 == 0:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Any:
    """Skip doctest collection for files without examples: it took half of the collection time."""
    found = yield
    if file_path.suffix == ".py" and ">>>" not in file_path.read_text():
        return [each for each in found if not isinstance(each, DoctestModule)]
    return found


SPARK = re.compile("spark|notebook|test_java")
"""Words in the names of tests that need Spark; notebooks have their own session."""
SESSIONS = {"spark", "alone"}


SOAKS = re.compile(r"^pytestmark = pytest\.mark\.soak\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without requested tests, because each worker would import them all."""
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
    """Mark tests that need Spark, by their name or by a fixture."""
    if SESSIONS & set(getattr(item, "fixturenames", ())) or SPARK.search(item.nodeid):
        item.add_marker(pytest.mark.spark)
    if item.get_closest_marker("drawn"):
        item.add_marker(pytest.mark.sampled)


def pytest_configure(config: pytest.Config) -> None:
    """End a soak after its minutes."""
    if SOAK:
        config.pluginmanager.register(soaking.Soak(config), "soaking")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Share one local Spark session among the tests of a process; restore its settings after each module."""
    from spark_session import kept, shared

    with kept(shared()) as session:
        yield session


@pytest.fixture(scope="module")
def alone() -> None:
    """Stop the shared Spark session, for tests that start their own."""
    from spark_session import stop_shared

    stop_shared()


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Share one process that forks runs of ``ddflow run``: it takes three seconds of CPU to start."""
    from lives import Lives

    return Lives(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Share one Postgres in each worker; a test that stops it also restarts it."""
    made = postgres_server.Server()
    yield made
    made.close()


@pytest.fixture
def server(cluster: Any) -> Any:
    """Return the worker's Postgres without slots and tables."""
    cluster.empty()
    return cluster


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    """Share one mock Kafka cluster in each worker, by its addresses; each test has its own topics."""
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
"""Files that start first after Spark's, because they need no kernels.

Meanwhile the other worker's first group, ``warmup``, compiles missing kernels. Tests that call kernels would compile
them a second time.
"""

LONGEST = ("spark_connect", "notebooks", "java", *NO_KERNELS, "durable_memory", "partitions_memory", "medium", "cli")
"""Files that start first: a long test at the end leaves the other core idle."""


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases that the run leaves out: all but n cases of each test marked ``drawn(n)``.

    Tests with the same ``of`` share their n cases.
    """
    lists: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        for mark in () if item.get_closest_marker("soak") else item.iter_markers("drawn"):
            name = mark.kwargs.get("of", item.nodeid.partition("[")[0])
            lists.setdefault((name, mark.args[0]), []).append(item)
    return {item for (name, most), each in lists.items() for item in {*each} - {*sample(each, most, "drawn", name)}}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first and deselect cases that are not drawn, unless cases are requested by name.

    Doctests of kernels get the mark ``kernels``: the runs with bounds checks and without the compiler include them.
    """
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
    """Freeze collected tests: they are a million objects, which later garbage collections need not visit."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Unfreeze, so that the interpreter frees the objects at exit and no library reports a leak."""
    gc.unfreeze()


class Together(LoadScopeScheduling):
    """A scheduler that sends tests to workers one by one, largest groups first.

    All tests of modules with the same ``together`` name go to one worker. So they set up a Spark session or a kernel
    cache once.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.split("::")[0]) or nodeid


@cache
def group(path: str) -> str | None:
    """Return a module's ``together`` name from its source, because the scheduling process has not imported it."""
    found = re.search(r'^pytestmark = pytest.mark.together\("(\w+)"\)', (ROOT / path).read_text(), re.MULTILINE)
    return found and found[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Use `Together` as the scheduler."""
    return Together(config, log)

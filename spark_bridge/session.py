"""Configure Spark sessions for ddflow, and start a local session.

These settings change no result, and ddflow also works in a session without them. `configure` keeps the settings that a
builder already has. A job changes the session's batch sizes only while the job runs. `local_session` refuses to share
an active session, and stops the session that it started at the end of the block. Executors must be able to import the
module `spark_bridge.daemon`. Limits: the JVM of a local session runs until the process ends. This JVM is not tuned for
large data.

>>> for setting in SETTINGS:
...     print(setting.name)
spark.sql.execution.arrow.maxRecordsPerBatch
spark.sql.execution.arrow.maxBytesPerBatch
spark.python.daemon.module
spark.python.worker.reuse
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from ddflow.errors import ConcurrentUse, MissingExtra
from spark_bridge.java import ensure_java

CACHE: Final = "DDFLOW_CACHE_DIR"
BATCH_ROWS: Final = 100_000
"""Number of rows in one batch from Spark."""
BATCH_BYTES: Final = 64 << 20
"""Maximum bytes of a batch from Spark. A limit on rows is not enough, because one row can have megabytes."""
_ROWS_SETTING, _BYTES_SETTING = (f"spark.sql.execution.arrow.max{what}PerBatch" for what in ("Records", "Bytes"))
_DESCRIPTION: Final = "spark.job.description"


class SparkSetting(NamedTuple):
    """A setting of Spark, its value, and the reason for it."""

    name: str
    value: str
    why: str


SETTINGS: Final = (
    SparkSetting(
        _ROWS_SETTING,
        str(BATCH_ROWS),
        "Python receives rows in batches of 100,000, not 10,000, which takes half the time for narrow rows",
    ),
    SparkSetting(_BYTES_SETTING, str(BATCH_BYTES), "a batch has at most 64 MB, however wide its rows are"),
    SparkSetting(
        "spark.python.daemon.module",
        "spark_bridge.daemon",
        "workers are forked from a process that has loaded ddflow and its kernels, so a new worker starts in "
        "milliseconds, not half a second; ddflow must be installed on the executors",
    ),
    SparkSetting(
        "spark.python.worker.reuse", "true", "a worker runs many tasks, and keeps its partitions of a state open"
    ),
)


def configure(builder: Any, *, cache: str | None = None, explain: bool = False) -> Any:
    """Add ddflow's settings to a ``SparkSession.builder``. Call this function before you create the session.

    Parameters
    ----------
    builder : SparkSession.Builder
        The builder. Settings that it already has stay.
    cache : str, optional
        A folder for compiled kernels on each machine, private to the user. By default the platform's cache folder.
    explain : bool
        Print each setting and its reason.

    Returns
    -------
    SparkSession.Builder
        The same builder, with the settings.
    """
    chosen = list(SETTINGS)
    place = cache or os.environ.get(CACHE)
    if place:
        why = "each machine compiles the kernels once, and keeps them there"
        chosen.append(SparkSetting(f"spark.executorEnv.{CACHE}", place, why))
    known = getattr(builder, "_options", {})
    for setting in chosen:
        if setting.name not in known:
            builder = builder.config(setting.name, setting.value)
        if explain:
            print(f"{setting.name} = {known.get(setting.name, setting.value)}: {setting.why}")
    return builder


_QUIET = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""A log configuration that shows only errors. ``spark.log.stage`` takes effect too late for the first lines."""


def local_settings(scratch: Path, memory: str) -> dict[str, str]:
    """Return the settings of a local session, which uses only this host and files under ``scratch``."""
    logging = scratch / "log4j2.properties"
    return {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.absolute().as_uri()}",
        "spark.log.stage": "ERROR",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def local_session(name: str, cores: int | None = None, memory: str = "2g") -> Iterator[SparkSession]:
    """Start a session in the JVM of this process, with ``cores`` threads (by default one for each core).

    Stop the session at the end of the block.

    ``memory`` is the memory of the JVM, and has an effect only for the first session of a process. Starting a session
    takes some seconds. Raises `MissingExtra` if there is no suitable Java, and `ConcurrentUse` if the process has an
    active session.
    """
    ensure_java()
    if SparkSession.getActiveSession() is not None:
        asked = f"a local Spark session for {name}"
        raise ConcurrentUse(asked, "this process has an active session", "use the active session, or stop it first")
    with TemporaryDirectory(prefix="ddflow-spark-") as folder:
        scratch = Path(folder)
        (scratch / "log4j2.properties").write_text(_QUIET)
        builder = configure(SparkSession.builder.appName(name).master(f"local[{cores or os.cpu_count() or 1}]"))
        for key, value in local_settings(scratch, memory).items():
            builder = builder.config(key, value)
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            remedy = "check the output of Java, or set JAVA_HOME to another Java"
            raise MissingExtra(f"a local Spark session for {name}", str(error), remedy) from None
        try:
            yield session
        finally:
            session.stop()


def get_spark_context(session: Any) -> Any:
    """Return the SparkContext of the session, or None on Spark Connect."""
    try:
        return session.sparkContext
    except (PySparkException, AttributeError, ImportError):
        return None


@contextmanager
def set_batch_sizes(session: Any, memory: int | None) -> Iterator[None]:
    """While a block runs, set the size of the batches that Spark passes to tasks.

    If the session already has a larger number of rows per batch, this number stays.
    """
    most = BATCH_BYTES if memory is None else max(min(BATCH_BYTES, memory // 8), 1 << 20)
    rows = int(session.conf.get(_ROWS_SETTING, "10000"))
    wanted = {_ROWS_SETTING: str(BATCH_ROWS if 0 < rows < BATCH_ROWS else rows), _BYTES_SETTING: str(most)}
    before = {name: session.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            with suppress(PySparkException):  # the session may end with the job
                session.conf.unset(name) if old is None else session.conf.set(name, old)


@contextmanager
def describe_jobs(session: Any, text: str) -> Iterator[None]:
    """Describe the jobs of a block in Spark's web UI. Spark Connect has no descriptions, so nothing happens there."""
    context = get_spark_context(session)
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)

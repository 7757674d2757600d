"""A local Spark session of one's own: for the demo, and for trying a plan without a cluster.

Invariant: the session is made only where it is asked for by name, and leaving the block stops it and removes what it
put on disk; one that is there already is refused, never borrowed and never stopped. Spark hands the one active session
of a process to whoever builds the next, writes a warehouse folder into the working directory, looks the host's name up,
and starts workers of whatever ``python3`` is on PATH. What it does not do: end the JVM, which PySpark keeps until the
process ends (its own temporary folders stay where Spark puts them, and go with it: it remembers their place over
sessions), or tune anything for large data.

>>> settings(Path("scratch"), "2g")["spark.sql.warehouse.dir"]
'scratch/warehouse'
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ddflow.errors import ConcurrentUse, MissingExtra
from spark_bridge.java import ensure_java

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
"""Only errors are logged, from the first line on; ``spark.log.level`` comes too late for the first ones."""


def settings(scratch: Path, memory: str) -> dict[str, str]:
    """What a local session is started with: everything on this host and under ``scratch``."""
    logging = scratch / "log4j2.properties"
    return {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.absolute().as_uri()}",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def local_session(name: str, cores: int | None = None, memory: str = "2g") -> Iterator[SparkSession]:
    """A session on ``cores`` threads (default: all) of this process's own JVM, stopped at the end of the block.

    ``memory`` is the JVM's, and counts for the first session of a process only.  Takes seconds.  Raises `MissingExtra`
    without a Java that fits and starts, `ConcurrentUse` where the process has an active session.
    """
    ensure_java()
    if SparkSession.getActiveSession() is not None:
        asked = f"a local Spark session for {name}"
        raise ConcurrentUse(asked, "this process has an active session", "use that one, or stop it first")
    with TemporaryDirectory(prefix="ddflow-spark-") as folder:
        scratch = Path(folder)
        (scratch / "log4j2.properties").write_text(_QUIET)
        builder = SparkSession.builder.appName(name).master(f"local[{cores or os.cpu_count() or 1}]")
        for key, value in settings(scratch, memory).items():
            builder = builder.config(key, value)
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            remedy = "see what Java says, or name another by JAVA_HOME"
            raise MissingExtra(f"a local Spark session for {name}", str(error), remedy) from None
        try:
            yield session
        finally:
            session.stop()

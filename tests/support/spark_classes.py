"""Archive the classes that Spark loads. With the archive, the twenty or so JVMs of a test run start in half the time.

``.ci/test`` makes the archive beside the compiled kernels if it is missing, and ``conftest.py`` passes it to every JVM.
A JVM with another version or other jars silently ignores the archive. Run this file as a program to make the archive.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddflow.kernels.cache import list_cache_directories

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
"""Options of the JVM.

The JVMs of tests run only for a short time, so the second compiler and the parallel collector cost too much.
"""

KEPT = 3
"""Number of archives to keep; each environment and version has its own archive. Each archive has 190 MB."""


def archive() -> Path:
    """Return the path of the archive, even if it does not exist."""
    facts = f"{version('pyspark')} {sys.prefix} {os.environ.get('JAVA_HOME')}"
    return list_cache_directories()[0] / f"spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jsa"


def options() -> str:
    """Return the JVM options of a test run."""
    return f"{OPTIONS} -XX:SharedArchiveFile={archive()}" if archive().exists() else OPTIONS


def make() -> None:
    """Run the kinds of jobs that tests run. When the JVM of these jobs ends, it writes the archive."""
    archive().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive().parent) as folder:
        made = Path(folder) / "classes"
        told = f'--driver-java-options "-XX:ArchiveClassesAtExit={made}" pyspark-shell'
        environment = os.environ | {"PYSPARK_SUBMIT_ARGS": told, "JDK_JAVA_OPTIONS": OPTIONS}
        done = subprocess.run([sys.executable, __file__, folder], env=environment, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
        elif made.exists():
            os.replace(made, archive())
            for old in sorted(archive().parent.glob("spark-*.jsa"), key=os.path.getmtime)[:-KEPT]:
                old.unlink()


def jobs(folder: str) -> None:
    """Run a shuffle through Python, files, a sort and a stream."""
    import pyarrow as pa

    from spark_bridge.session import local_session

    with local_session("classes", cores=2, memory="1g") as spark:
        table = pa.table({"id": range(100), "text": [str(n) for n in range(100)]})
        frame = spark.createDataFrame(table)

        def same(batches: Any) -> Any:
            yield from batches

        frame.repartition(2, "id").mapInArrow(same, frame.schema).groupBy("text").count().toArrow()
        frame.write.parquet(f"{folder}/in")
        read = spark.readStream.schema(frame.schema).parquet(f"{folder}/in").writeStream
        read = read.foreachBatch(lambda each, _: each.mapInArrow(same, each.schema).orderBy("id").collect())
        read.option("checkpointLocation", f"{folder}/at").trigger(availableNow=True).start().awaitTermination()
        java = spark.sparkContext._gateway.proc
    java.stdin.close()
    java.wait()  # the JVM writes the archive when it ends


if __name__ == "__main__":
    if len(sys.argv) > 1:
        jobs(sys.argv[1])
    elif not archive().exists():
        make()

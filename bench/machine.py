"""Describe the machine, versions and commit of a result, and calibrate the machine's speed.

The calibration does not use ddflow. Before and after the run, it times a bare numba loop (processor), a copy of 256 MB
(memory) and syncs of 4 KB (disk). If these times differ between the start and the end of a run, or between two results,
compare only ratios, not seconds.

Limits: the calibration does not show noise during the run. The minimum and the maximum of each line show the noise
during the run.

>>> sorted(calibration(loops=1000, megabytes=1, syncs=1))
['copy_gb_per_s', 'fsync_ms', 'loop_ns']
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("ddflow", "numpy", "numba", "pyarrow", "duckdb", "polars", "rocksdict", "pyspark")
MEASURED = ("ddflow", "spark_bridge", "bench", "pyproject.toml", "requirements.lock")  # paths that results depend on
IGNORED = (":!bench/results", ":!*.md")


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, versions, commit, date and load of the machine."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
        "commit": (_output("git", "rev-parse", "--short", "HEAD") or "none") + ("-dirty" if uncommitted() else ""),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def uncommitted() -> list[str]:
    """Return the measured files that differ from the commit.

    Untracked files count as changes; results and Markdown files do not.
    """
    if not _output("git", "rev-parse", "HEAD"):
        return ["no commit is known here"]
    return _output("git", "status", "--porcelain", "--", *MEASURED, *IGNORED).splitlines()


def calibration(loops: int = 100_000_000, megabytes: int = 256, syncs: int = 20) -> dict[str, float]:
    """Return nanoseconds per turn of a bare loop, GB/s of a copy (bytes read and written) and milliseconds per sync."""
    from numba import njit

    @njit
    def xorshift(turns: int) -> int:  # each turn needs the result of the previous turn, so none can be skipped
        word = np.uint64(88172645463325252)
        for _ in range(turns):
            word ^= word << np.uint64(13)
            word ^= word >> np.uint64(7)
            word ^= word << np.uint64(17)
        return word

    xorshift(1)
    begun = time.perf_counter()
    xorshift(loops)
    loop = time.perf_counter() - begun
    source, target = np.ones(megabytes << 17), np.zeros(megabytes << 17)
    copies, waits = list[float](), list[float]()
    for _ in range(5):
        begun = time.perf_counter()
        np.copyto(target, source)
        copies.append(time.perf_counter() - begun)
    with tempfile.TemporaryFile() as file:
        for _ in range(syncs):
            file.write(bytes(4096))
            begun = time.perf_counter()
            os.fsync(file.fileno())
            waits.append(time.perf_counter() - begun)
    figures = {"loop_ns": loop * 1e9 / loops, "copy_gb_per_s": 2 * source.nbytes / median(copies) / 1e9}
    return {name: round(figure, 3) for name, figure in (figures | {"fsync_ms": median(waits) * 1e3}).items()}


def line(about: dict[str, Any]) -> str:
    """Format the machine as one line, with the calibration before and after the run."""
    runs = about.get("calibration", [])
    speeds = {name: " to ".join(f"{run[name]:g}" for run in runs) for name in (runs[0] if runs else ())}
    plain = {name: value for name, value in about.items() if name != "calibration"}
    return ", ".join(f"{name} {value}" for name, value in (plain | speeds).items())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except FileNotFoundError:
        return ""

"""Measure the current and the peak memory of processes, separately for each kind of page.

*Resident* memory includes mapped files that the page cache holds anyway. So the functions count *private* pages
(RssAnon) and *mapped* pages separately. Only the process can free private pages. The system drops mapped pages under
memory pressure. Limits: a `Watch` misses peaks between two samples. On systems other than Linux, all pages count as
private, and a peak covers the complete life of the process.

>>> import time
>>> with Watch(every=0.001) as watch:
...     taken = bytearray(50_000_000)
...     time.sleep(0.1)
>>> watch.peak.private >= 50_000_000
True
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa


class Pages(NamedTuple):
    """Numbers of bytes, one for each kind of page."""

    private: int
    mapped: int


def pages(tree: bool = False) -> Pages:
    """Count the pages of this process.

    With ``tree``, count the pages of the process and of its child processes. A page that several processes share counts
    once for each of them.
    """
    me, private, mapped = psutil.Process(), 0, 0
    for process in (me, *me.children(recursive=True)) if tree else (me,):
        with suppress(psutil.Error):  # an ended process holds nothing
            held = process.memory_info()
            shared = getattr(held, "shared", 0)
            private, mapped = private + held.rss - shared, mapped + shared
    return Pages(private, mapped)


class Watch:
    """A context manager that samples `pages` every ``every`` seconds; ``peak`` has the maximum of each kind.

    ``resident``: the maximum of both kinds together.
    """

    def __init__(self, every: float = 0.02, tree: bool = False) -> None:
        self.every, self.tree, self.peak, self.resident, self.samples = every, tree, Pages(0, 0), 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _sample(self) -> None:
        while not self._stop.wait(self.every):
            self._look()

    def _look(self) -> None:
        now = pages(self.tree)
        self.peak, self.resident = Pages(*map(max, self.peak, now)), max(self.resident, sum(now))
        self.samples += 1


def settled() -> int:
    """Free unused memory; return the number of resident bytes after that.

    The free lists of the C library are also trimmed, because memory reused from free lists would not show up as growth.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """Return the maximum resident bytes since the start of the process or since `forget_peak`."""
    if sys.platform == "linux":  # getrusage would include the parent's memory at the fork
        text = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Reset the peak. If the system does not support that, the peak includes the memory used to load the input."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def on_disk(folder: str) -> int:
    """Count the bytes that are allocated for the files in a folder. Skip a file that disappears meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total

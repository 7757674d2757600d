"""What processes hold of the machine's memory: now, at the highest, and by what kind of page.

Invariant: nothing here adds to what it looks at but one small thread. *Resident* counts what lies in the page cache
anyway, so a mapped file looks like memory that was taken. So pages are told apart: *private* ones (RssAnon), which
nothing but the process can give back, and *mapped* ones, of files and of shared memory, which the system drops when it
needs the room. Limits: a watch does not see what comes and goes between two samples; elsewhere than on Linux all pages
count as private, and a peak is that of the whole process.

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
    """Bytes by kind of page."""

    private: int
    mapped: int


def pages(tree: bool = False) -> Pages:
    """The pages of this process, or of all under it, too (pages that two share count for both)."""
    me, private, mapped = psutil.Process(), 0, 0
    for process in (me, *me.children(recursive=True)) if tree else (me,):
        with suppress(psutil.Error):  # one that has ended holds nothing
            held = process.memory_info()
            shared = getattr(held, "shared", 0)
            private, mapped = private + held.rss - shared, mapped + shared
    return Pages(private, mapped)


class Watch:
    """Samples `pages` every ``every`` seconds from a thread while entered; ``peak`` is the most of each kind.

    ``resident``: the most of both kinds together.
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
    """Give back what nobody holds any more; returns the resident bytes that are left.

    Also what the C library keeps for later: what is taken from there would not show as memory that was taken.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """The most resident bytes there ever were, or were since `forget_peak`."""
    if sys.platform == "linux":  # getrusage would also count what the parent held when it forked this process
        text = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Let the peak start from now; where the system cannot do that, loading the input is part of it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def on_disk(folder: str) -> int:
    """Bytes of the files in a folder, as allocated; one that goes while it is counted counts nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total

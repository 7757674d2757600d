"""What this process holds of the machine's memory: now, at its highest, and by what kind of page.

Invariant: nothing here adds to what it looks at but one small thread. *resident* counts what lies in the page cache
anyway, so a mapped file looks like memory that was taken. Linux tells the kinds apart: private pages (RssAnon), which
nothing but this process can give back, pages of mapped files (RssFile, with those of the libraries), which the system
drops when it needs the room, and shared memory (RssShmem), which is what files on a memory disk are. A watch samples
them; what comes and goes between two samples it does not see. Elsewhere than on Linux only the resident size is known,
and a watch sees nothing.

>>> import time
>>> with Watch(every=0.001) as watch:
...     taken = bytearray(50_000_000)
...     time.sleep(0.1)
>>> watch.peak.private >= 50_000_000 or sys.platform != "linux"
True
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa


class Pages(NamedTuple):
    """Bytes by kind of page."""

    private: int
    mapped: int
    shared: int


def pages() -> Pages:
    """The pages this process holds now; zeros where the system does not tell them apart."""
    return Pages(*(_status(field) or 0 for field in ("RssAnon", "RssFile", "RssShmem")))


class Watch:
    """Samples `pages` every ``every`` seconds from a thread while entered; ``peak`` is the most of each kind."""

    def __init__(self, every: float = 0.02) -> None:
        self.every, self.peak, self.samples = every, Pages(0, 0, 0), 0
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
        now = pages()
        self.peak = Pages(*map(max, self.peak, now))
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
    return resident()


def resident() -> int:
    """Bytes of this process that are in memory now, of any kind."""
    now = _status("VmRSS")
    return _highest() if now is None else now


def peak() -> int:
    """The most that `resident` ever was, or was since `forget_peak`."""
    # getrusage would also count what the parent held when it forked this process, so it is the second choice.
    high = _status("VmHWM")
    return _highest() if high is None else high


def forget_peak() -> None:
    """Let the peak start from now; where the system cannot do that, loading the input is part of it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def on_disk(folder: str) -> int:
    """Bytes of the files in a folder, as allocated; one that goes while it is counted counts nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _status(field: str) -> int | None:
    """A size in bytes out of Linux's account of this process, None on other systems."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(field + ":")), None)


def _highest() -> int:
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return high if sys.platform == "darwin" else high * 1024

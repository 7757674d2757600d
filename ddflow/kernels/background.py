"""A process of its own that fills the cache of compiled kernels, while this one interprets what is not there yet.

Invariant: nothing waits for it, and nothing depends on it. One such process fills a cache at a time, with the lowest
priority. It ends with the process that started it, even where that one is killed, because it reads a pipe which then
closes. It is never started in one of Spark's tasks, nor where no cache can be written, nor where
``DDFLOW_BACKGROUND=0`` is set. A cache that was filled once says so, and then nobody starts it again.

What it runs is `ddflow.tools.warmup`.

>>> import os
>>> os.environ["DDFLOW_BACKGROUND"] = "0"
>>> start(Path("/nowhere"))
False
>>> del os.environ["DDFLOW_BACKGROUND"]
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

FILLED: Final = "filled"
LOCK: Final = "filling.lock"
_started: list[subprocess.Popen[bytes]] = []


def start(directory: Path | None) -> bool:
    """Start the process that fills a cache, once for this process and only if need be.  Returns whether it runs."""
    if _started or directory is None or os.environ.get("DDFLOW_BACKGROUND") == "0" or in_task():
        return False
    if filled(directory):
        return False
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.suppress(OSError):  # no memory for a process, say: then this one compiles when its time has come
        _started.append(
            subprocess.Popen(
                [sys.executable, "-m", "ddflow.tools.fill_cache"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        notice(
            "ddflow compiles its kernels in the background, once on this machine: a minute of one core, "
            "while small steps are interpreted. `ddflow warmup` does it ahead."
        )
    return bool(_started)


def running() -> list[subprocess.Popen[bytes]]:
    """List the processes that this one has started; closing its ``stdin`` ends one."""
    return list(_started)


def filled(directory: Path | None) -> bool:
    """Whether all kernels of a cache have been compiled once."""
    return directory is not None and (directory / FILLED).exists()


def note_filled(directory: Path | None) -> None:
    """Note that all kernels are in a cache.  One that has gone, or cannot be written, is no error."""
    if directory is not None:
        with contextlib.suppress(OSError):
            (directory / FILLED).touch(mode=0o600)


@contextlib.contextmanager
def filling(directory: Path) -> Iterator[bool]:
    """Lock the cache for one filling process.  Yields False if another one fills it, or has filled it."""
    with open(directory / LOCK, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if filled(directory):
            yield False
            return
        yield True


def end_with(parent: IO[Any]) -> None:
    """End this process as soon as the other end of a pipe has closed."""

    def watch() -> None:
        while os.read(parent.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="ddflow-parent").start()


def notice(text: str) -> None:
    """Tell whoever waits: a line on a terminal's or a notebook's stderr, or in the log of one of Spark's tasks.

    Where nobody would read it, it is logged as information.
    """
    if sys.stderr.isatty() or "ipykernel" in sys.modules or in_task():
        print(text, file=sys.stderr, flush=True)
    else:
        logging.getLogger("ddflow").info("%s", text)


def in_task() -> bool:
    """Whether this process runs tasks of Spark's: it is, or was forked from, a daemon of Python workers."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "pyspark.daemon" in sys.modules or getattr(spec, "name", "") == "pyspark.worker"

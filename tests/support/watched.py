"""A program's memory, watched from outside while it does what it was told; and the files that this process has open.

The program writes a line when it is ready, waits for one, writes another when it is done, waits again, and ends with
its answer as JSON.  What counts is memory of its own: pages of mapped files are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple


class Watched(NamedTuple):
    """``idle``: bytes that it had when it was ready.  ``most``: that it had until it was done.  ``answer``: its own."""

    idle: int
    most: int
    answer: Any


def watched(program: str, *arguments: str) -> Watched:
    """Run a program of Python and watch it."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "idle\n"
        idle, most, done = private(process.pid), 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not done.is_set():
                most = max(most, private(process.pid))
                time.sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        print("go", file=process.stdin, flush=True)
        word = process.stdout.readline()
        done.set()
        watcher.join()
        assert word == "done\n"
        print("go", file=process.stdin, flush=True)
        return Watched(idle, most, json.loads(process.stdout.readline()))


def private(pid: int) -> int:
    """Bytes of memory of a process's own, mapped files left out; where the system does not tell, 0."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def open_below(folder: Path) -> list[str]:
    """List the paths below a folder that this process has open; none where the system does not say (no ``/proc``).

    Descriptors of other folders may close at any time, when an object of an earlier test is collected.
    """
    found = list[str]()
    with suppress(FileNotFoundError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if path == str(folder) or path.startswith(f"{folder}{os.sep}"))

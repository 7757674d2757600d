"""Measure a program's memory from outside while it works, and list this process's open files.

The program writes a line when it is ready, waits for one, writes another when it is done, waits again, and ends with
its answer as JSON. Only its private memory counts, without pages of mapped files.
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
    """A measurement: ``idle`` bytes when ready, ``most`` bytes until done, and the program's ``answer``."""

    idle: int
    most: int
    answer: Any


def watched(program: str, *arguments: str) -> Watched:
    """Run Python code and measure it."""
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
    """Return a process's private bytes without mapped files; 0 if the system does not report them."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def open_below(folder: Path) -> list[str]:
    """List the open paths of this process below a folder; none on a system without ``/proc``.

    Descriptors of other folders may close at any time, when an object of an earlier test is collected.
    """
    found = list[str]()
    with suppress(FileNotFoundError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if path == str(folder) or path.startswith(f"{folder}{os.sep}"))

"""Measure from outside how much memory a program uses while it works. List the open files of this process.

The program writes a line when it is ready, and then waits to read a line. When its work is done, the program writes
another line and waits again. At the end it writes its answer as JSON. Only private memory is measured; pages of mapped
files are left out.
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
    """A measurement.

    ``idle`` is the bytes when the program is ready, ``most`` is the maximum until it is done, and ``answer`` is its
    answer.
    """

    idle: int
    most: int
    answer: Any


def watched(program: str, *arguments: str) -> Watched:
    """Run Python code in a separate process, and measure this process."""
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
    """Return the private bytes of a process, without mapped files. Return 0 if the system does not report them."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def open_below(folder: Path) -> list[str]:
    """List the paths below a folder that this process has open. On a system without ``/proc``, the list is empty.

    Files in other folders may be closed at any time, when the garbage collector frees an object of an earlier test.
    """
    found = list[str]()
    with suppress(FileNotFoundError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if path == str(folder) or path.startswith(f"{folder}{os.sep}"))

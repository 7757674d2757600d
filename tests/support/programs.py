"""Fork programs from a process that has loaded all imports. Each program saves a second of imports.

`Program` replaces `subprocess.Popen` for Python code, `ddflow` for a command line. There is one forking process for
each value of ``of``. A forking process starts with the first program of a test process, and ends with the test process.

Guarantees: a program has its own streams, environment, folder and arguments, receives signals, and ends like Python.
Limits: some modules read a value from the environment when they are imported, or cache a value later. For such a
module, the program has the value of the forking process. A test of such a value must start a new interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.abc import InspectLoader
from pathlib import Path
from types import ModuleType
from typing import IO, Any

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
SHELL = """
import importlib
from ddflow import cli
for verb in cli.VERBS:
    importlib.import_module(f"ddflow.cli.{verb}")
from lives import warm
warm()
"""
"""Code that the forking process runs first, which imports all verbs of the command line."""
MAIN = "import sys\nfrom ddflow.cli import main\nsys.exit(main())"


class Program:
    """Python code that runs in its own process.

    Parameters are like those of `subprocess.Popen`. Without a pipe, the program's input is empty and its output is
    discarded. ``path``: folders that are searched first for imports. ``of``: code that the forking process runs first.
    """

    def __init__(
        self,
        code: str,
        *words: object,
        of: str = SHELL,
        path: Sequence[str] = (),
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        stdin: Any = DEVNULL,
        stdout: Any = DEVNULL,
        stderr: Any = DEVNULL,
    ) -> None:
        self._state, theirs = socket.socketpair()
        self.stdin, reads = _stream(stdin, writes=True)
        self.stdout, out = _stream(stdout)
        self.stderr, err = _stream(stderr)
        told = {
            "code": code,
            "words": list(map(str, words)),
            "path": list(path),
            "env": dict(os.environ if env is None else env),
            "folder": str(cwd or Path.cwd()),
        }
        _server(of).fork(told, [theirs.fileno(), reads, out, err])
        theirs.close()
        for given, fd in ((stdin, reads), (stdout, out), (stderr, err)):
            if given in (PIPE, DEVNULL):
                os.close(fd)
        self.pid = self._hear()
        self.returncode: int | None = None

    def _hear(self) -> int:
        return int.from_bytes(self._state.recv(4, socket.MSG_WAITALL), "big", signed=True)

    def poll(self) -> int | None:
        """Return the exit code if the program has ended, else None."""
        if self.returncode is None and select.select([self._state], [], [], 0)[0]:
            self.returncode = self._hear()
            self._state.close()
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        """Wait for the end and return the exit code; kill the program after ``timeout``."""
        if self.returncode is None:
            late = threading.Timer(timeout, self.kill)
            late.start()
            self.returncode = self._hear()
            late.cancel()
            self._state.close()
        return self.returncode

    def communicate(self, given: str | None = None, timeout: float = 120) -> tuple[str, str]:
        """Write ``given``, read both streams to their ends, and wait."""
        late = threading.Timer(timeout, self.kill)
        late.start()
        if self.stdin is not None:
            with self.stdin as file:
                file.write(given or "")
        with ThreadPoolExecutor(2) as pool:
            out, err = pool.map(_rest, (self.stdout, self.stderr))
        late.cancel()
        self.wait(timeout)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal to the program if it is running."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def ddflow(*words: object, **options: Any) -> Program:
    """Start a ddflow command line."""
    return Program(MAIN, *words, **options)


def ended(program: Program) -> subprocess.CompletedProcess[str]:
    """Wait for a program with pipes; return its output and exit code."""
    out, err = program.communicate()
    return subprocess.CompletedProcess("", program.wait(), out, err)


def run_ddflow(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end in its own process."""
    return ended(ddflow(*words, stdout=PIPE, stderr=PIPE, **options))


def run_python(code: str, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code to its end in its own process."""
    return ended(Program(code, *words, stdout=PIPE, stderr=PIPE, **options))


def _stream(given: Any, writes: bool = False) -> tuple[IO[str] | None, int]:
    """Return the two ends of a stream: for this process (None if there is no pipe), and for the program."""
    if given == PIPE:
        reading, writing = os.pipe()
        return (open(writing, "w"), reading) if writes else (open(reading), writing)
    if given == DEVNULL:
        return None, os.open(os.devnull, os.O_RDONLY if writes else os.O_WRONLY)
    return None, given if isinstance(given, int) else given.fileno()


def _rest(file: IO[str] | None) -> str:
    if file is None:
        return ""
    with file:
        return file.read()


class Server:
    """A process that runs some code and then forks programs."""

    def __init__(self, before: str) -> None:
        self.control, theirs = socket.socketpair()
        command = [sys.executable, __file__, before, str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=DEVNULL)
        theirs.close()
        self.lock = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        """End the forking process after its programs have ended."""
        self.control.close()
        self.process.wait()

    def fork(self, told: dict[str, Any], fds: list[int]) -> None:
        """Request a program.

        ``fds`` has the socket that reports the state of the program, and the streams of the program.
        """
        text = json.dumps(told).encode()
        with self.lock:
            socket.send_fds(self.control, [len(text).to_bytes(4, "big")], fds)
            self.control.sendall(text)


@cache
def _server(before: str) -> Server:
    return Server(before)


class Text(InspectLoader):
    """A loader that loads a module from its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        """Return the text."""
        return self.text


def _run(code: str) -> None:
    """Run Python code as the main module of a program."""
    Text(code).exec_module(ModuleType("__main__"))


def _serve() -> None:
    """Fork programs until the requesting process ends."""
    import gc

    _run(sys.argv[1])
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[2]))
    while True:
        head, fds, *_ = socket.recv_fds(control, 4, 4)
        _reap(0 if not head else os.WNOHANG)
        if not head:
            return
        told = json.loads(control.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        if not os.fork():
            control.close()
            return _wait_for_one(told, fds)
        for fd in fds:
            os.close(fd)


def _reap(how: int) -> None:
    """Wait for programs that have ended, so that their CPU time counts for this process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass


def _wait_for_one(told: dict[str, Any], fds: list[int]) -> None:
    """Fork the program. Send the program's process id, and later the program's exit code."""
    state, *streams = fds
    child = os.fork()
    if not child:
        os.close(state)
        return _become(told, streams)
    for fd in streams:
        os.close(fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(state, child.to_bytes(4, "big"))
    os.write(state, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]).to_bytes(4, "big", signed=True))
    os._exit(0)


def _become(told: dict[str, Any], streams: list[int]) -> None:
    """Run a program in this process."""
    import tempfile

    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["env"])
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", buffering=1, closefd=False)
    sys.argv, sys.path[:0] = ["ddflow", *told["words"]], told["path"]
    tempfile.tempdir = None
    _run(told["code"])


if __name__ == "__main__":
    _serve()

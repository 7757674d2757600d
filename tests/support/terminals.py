"""The command line on terminals: forked from one process, in which all is imported and the kernels are loaded.

`on_a_terminal` is the program of `main` in a process and on a terminal of its own, without the second that a program
takes to start. The process that forks starts with the first command of a test process, and ends with that.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pty
import re
import subprocess
import sys
from functools import cache


def until_closed(terminal: int) -> str:
    """What comes out of a terminal; closes it."""
    got = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not piece:
            break
        got += piece
    os.close(terminal)
    return got.decode()


def without_colours(shown: str) -> str:
    """What was shown, without the sequences that colour it and move about."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def on_a_terminal(*words: str, every: float | None = None) -> tuple[int, str]:
    """The exit code of a command in this folder, and what it showed, without colours.

    ``every``: seconds between two looks of a line that tells how far a run is; 0 shows each.
    """
    code, shown = sent(*words, every=every)
    return code, without_colours(shown)


def sent(*words: str, term: str = "xterm", columns: int = 120, every: float | None = None) -> tuple[int, str]:
    """The exit code, and all that was sent to a terminal of a kind that is so wide."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    environment = {"TERM": term, "COLUMNS": str(columns)}
    told = {"folder": os.getcwd(), "words": words, "environment": environment, "every": every}
    print(json.dumps(told), file=server.stdin, flush=True)
    code, shown = json.loads(server.stdout.readline())
    return code, shown


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks."""
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    """Run commands that come by lines, and tell how each ended and what it showed."""
    import gc

    from lives import warm

    from ddflow import cli, terminal

    for verb in cli.VERBS:
        importlib.import_module(f"ddflow.cli.{verb}")
    warm()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        told = json.loads(line)
        child, other = pty.fork()
        if not child:
            os.chdir(told["folder"])
            os.environ |= told["environment"]
            if told["every"] is not None:
                terminal.EVERY = told["every"]
            sys.argv = ["ddflow", *told["words"]]
            sys.exit(cli.main())
        got = until_closed(other)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), got]), flush=True)


if __name__ == "__main__":
    _serve()

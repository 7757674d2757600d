"""Run the command line on terminals, in processes that `programs` forks."""

from __future__ import annotations

import os
import pty
import re

from programs import MAIN, Program


def until_closed(terminal: int) -> str:
    """Return all output of a terminal and close it."""
    got = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # on Linux, the other end of the terminal is closed
            break
        if not piece:
            break
        got += piece
    os.close(terminal)
    return got.decode()


def without_colours(shown: str) -> str:
    """Remove the control sequences for colours and the cursor from output."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def on_a_terminal(*words: str, every: float | None = None) -> tuple[int, str]:
    """Run a command in this folder. Return its exit code, and its output without colours.

    ``every``: seconds between updates of the progress line; 0 shows each.
    """
    code, shown = sent(*words, every=every)
    return code, without_colours(shown)


def sent(*words: str, term: str = "xterm", columns: int = 120, every: float | None = None) -> tuple[int, str]:
    """Run a command on a terminal of this kind and width. Return its exit code and all its output."""
    program, terminal = begun(*words, term=term, columns=columns, every=every)
    shown = until_closed(terminal)
    return program.wait(), shown


def begun(*words: str, term: str = "xterm", columns: int = 120, every: float | None = None) -> tuple[Program, int]:
    """Start a command line on a terminal. Return the process, and the test's end of the terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": term, "COLUMNS": str(columns)}
    look = "" if every is None else f"from ddflow import terminal\nterminal.EVERY = {every}\n"
    program = Program(look + MAIN, *words, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return program, ours

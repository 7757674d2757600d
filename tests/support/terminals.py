"""The command line on terminals, in processes that `programs` forks."""

from __future__ import annotations

import os
import pty
import re

from programs import MAIN, Program


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
    program, terminal = begun(*words, term=term, columns=columns, every=every)
    shown = until_closed(terminal)
    return program.wait(), shown


def begun(*words: str, term: str = "xterm", columns: int = 120, every: float | None = None) -> tuple[Program, int]:
    """A command line that runs on a terminal, and our end of that."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": term, "COLUMNS": str(columns)}
    look = "" if every is None else f"from ddflow import terminal\nterminal.EVERY = {every}\n"
    program = Program(look + MAIN, *words, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return program, ours

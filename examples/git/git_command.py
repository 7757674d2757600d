"""Asking git: a command run so that neither the user's configuration nor the environment changes what it prints.

Invariant: what a command prints depends on the repository alone, and a command that fails, or is left half read, is an
error or is ended; no process outlives the block, and a repository, whoever made it, has git run no program: what it
lacks is not fetched (its settings may name any program as the way to a remote), hooks and monitors are off.  The user's
configuration can rename, colour, reorder, sign or leave out lines of a log, and cannot be switched off as a whole,
since a repository of another owner is only readable where it says so (``safe.directory``); a variable like GIT_DIR, set
wherever git runs a hook, points every command at another repository; and what git complains of must be read without
stopping what it prints.  It does not know what the commands mean, and runs none that writes.

>>> said(Path.cwd(), "version").startswith(b"git version ")
True
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from ddflow.errors import MissingExtra, UnreadableInput

CALM: Final = (
    *("--no-pager", "--no-replace-objects", "-c", "log.showRoot=true", "-c", "log.diffMerges=first-parent"),
    *("-c", "diff.orderFile=/dev/null", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
)
"""Options that keep configuration out of what git prints and runs, where the command itself has no flag for it."""

SEALED: Final = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
"""No transport has the name that is allowed; a git before 2.45 knows only that, and fails where it would fetch."""

SEE: Final = "see what git says"


def _environment() -> dict[str, str]:
    """The environment less what points git at another repository; configuration stays, for safe.directory's sake."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_CONFIG")}
    return kept | SEALED


@contextmanager
def spoken(where: Path, *command: str, remedy: str = SEE) -> Iterator[IO[bytes]]:
    """What a git command prints, as a stream; left early, the command is ended.  Its failing is `UnreadableInput`."""
    asked = f"git {command[0]} in {where}"
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                ["git", "-C", str(where), *CALM, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=_environment(),
            )
        except FileNotFoundError:
            raise MissingExtra(asked, "there is no git on PATH", "install git") from None
        assert process.stdout is not None
        try:
            yield process.stdout
            code = process.wait()
        except UnreadableInput as error:
            # What git printed made no sense; if it also complained, that is the reason.
            process.stdout.close()
            process.wait()
            if complaint := _complaint(complaints):
                raise UnreadableInput(asked, f"git says: {complaint}", remedy) from error
            raise
        finally:
            process.stdout.close()
            process.kill()
            process.wait()
        if code != 0:
            raise UnreadableInput(asked, f"git says: {_complaint(complaints) or f'exit code {code}'}", remedy)


def _complaint(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return " ".join(complaints.read(2000).decode(errors="replace").split())


def said(where: Path, *command: str, remedy: str = SEE) -> bytes:
    with spoken(where, *command, remedy=remedy) as out:
        return out.read()

"""Run git so that its output depends on the repository alone, not on configuration or environment.

The user's configuration can change the lines of a log, or leave them out. It cannot be switched off completely, because
git reads the repository of another owner only if the configuration allows it (``safe.directory``). A variable like
GIT_DIR, which git sets for hooks, would select another repository.

Guarantees: a command that fails raises an error. If the block ends early, the command is ended, too. Git runs no
programs for the repository: no fetch of missing objects, because settings may name any program as transport, no hooks,
and no monitors.
Limits: this file runs no command that writes.

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
"""Options that stop configuration from changing output or starting programs, if the command has no such flag."""

SEALED: Final = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
"""Variables that allow no transport; a git before 2.45 knows only GIT_ALLOW_PROTOCOL, and fails instead of fetching."""

SEE: Final = "see what git says"


def _environment() -> dict[str, str]:
    """Return the environment without variables that select another repository; safe.directory needs the others."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_CONFIG")}
    return kept | SEALED


@contextmanager
def spoken(where: Path, *command: str, remedy: str = SEE) -> Iterator[IO[bytes]]:
    """Yield the output of a git command as a stream; end the command if the block ends early.

    Raises `UnreadableInput` if the command fails.
    """
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
            # The output made no sense; if git also printed an error, that is the reason.
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

"""Run git so that its output depends only on the repository, and not on the configuration or the environment.

The user's configuration can change or omit the lines of a log. The configuration cannot be switched off completely. Git
reads a repository of another owner only if the configuration allows that (``safe.directory``). A variable like GIT_DIR,
which git sets for hooks, would select another repository.

Guarantees: a command that fails raises an error. If the block ends early, the command is ended, too. Git starts no
programs that the repository names: no hooks and no monitors. Git does not fetch missing objects either, because a
setting of the repository could name any program as the transport. Limits: this file runs no command that writes.

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
"""Options against settings that change the output or start programs.

The options override settings for which a command has no flag.
"""

SEALED: Final = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
"""Variables that forbid every transport.

Versions of git before 2.45 know only GIT_ALLOW_PROTOCOL, so they try to fetch, and fail.
"""

SEE: Final = "check the message of git"


def _environment() -> dict[str, str]:
    """Return the environment without variables that select another repository.

    Variables such as HOME stay, because git needs them to find ``safe.directory``.
    """
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
            # The output could not be parsed. If git printed an error message, report this message as the reason.
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

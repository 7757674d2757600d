r"""Read a git history as upserts. Each commit removes paths or sets paths to a (mode, blob).

Commits are read along the first parents, so a merge is compared with its first parent only. Paths are bytes, not text
(see `path_text`). A shallow clone begins at its boundary, and git shows its whole tree as added.

Guarantees: a path has at most one event per commit, and times are 1, 2, 3, ... Every event comes with both sides of
git's raw log line, so `git_feed` can check the retraction against the old side. Nothing is checked out or written, and
file contents are not read.

>>> path_text(b"src/main.py"), path_text(b"caf\xe9\\menu.txt")
('src/main.py', 'caf\\xe9\\\\menu.txt')
>>> path_bytes(path_text(b"caf\xe9\\menu.txt"))
b'caf\xe9\\menu.txt'
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import pyarrow as pa
from git_command import said, spoken

from ddflow.errors import UnreadableInput

SLICE: Final = 65_536
"""After this number of events, a slice ends with the current commit."""

LOG: Final = (
    *("log", "-z", "--format=%H%x20%ct", "--first-parent", "-m", "--reverse", "--raw", "--no-renames", "--no-abbrev"),
    *("--no-color", "--no-relative", "--no-show-signature", "--ignore-submodules=none"),
)
"""Options that follow only first parents, and include the root commit.

``-m`` makes versions of git before 2.31 compare merges with the first parent.
"""

RAW: Final = pa.schema(
    [("path", pa.string()), ("extension", pa.string()), ("commit", pa.int64())]
    + [(name, pa.string()) for name in ("old_mode", "old_blob", "mode", "blob")]
)
"""The columns of a raw log line; a missing side has a null mode and a null blob."""

TREE: Final = pa.schema([RAW.field(name) for name in ("path", "extension", "mode", "blob")])

COMMITS: Final = pa.schema([("commit", pa.int64()), ("hash", pa.string()), ("committed_at", pa.timestamp("s", "UTC"))])


NAME: Final = "pass a git checkout with --repo"


class Repository(NamedTuple):
    """A git repository with at least one commit."""

    where: Path
    """A directory in the repository."""
    head: str
    """The commit of HEAD when the repository was opened. No later commit is read."""
    shallow: bool
    """True if the history begins at the boundary of a shallow clone, and not at a root commit."""


class Commit(NamedTuple):
    """A commit on the first-parent line: its ordinal from 1 (the time), its hash, and its time (Unix seconds)."""

    ordinal: int
    hash: str
    made: int


class Change(NamedTuple):
    """One raw log line: a path with its mode and blob before and after; None for a missing side."""

    path: bytes
    old_mode: str | None
    old_blob: str | None
    mode: str | None
    blob: str | None


class Piece(NamedTuple):
    """Some complete commits, and their raw log lines in the columns of `RAW`."""

    commits: list[Commit]
    raw: pa.RecordBatch


def path_text(path: bytes) -> str:
    r"""Convert a path to text reversibly.

    UTF-8 is unchanged, other bytes become ``\xNN``, and a backslash is doubled.
    """
    return path.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def path_bytes(text: str) -> bytes:
    """Convert text from `path_text` back to the path."""

    def plain(found: re.Match[bytes]) -> bytes:
        return b"\\" if found[1] == b"\\" else bytes.fromhex(found[1][1:].decode())

    return re.sub(rb"\\(\\|x[0-9a-f]{2})", plain, text.encode())


def extension(path: str) -> str:
    """Return the extension of a path's last part with its dot, or "(none)".

    >>> extension("a.b/c.tar.gz"), extension("a.b/Makefile"), extension(".gitignore"), extension("x.")
    ('.gz', '(none)', '(none)', '(none)')
    """
    end = os.path.splitext(path)[1]
    return end if len(end) > 1 else "(none)"


def find(repo: str | Path | None = None) -> Repository:
    """Open the repository around a folder, by default around the working directory.

    Raises `UnreadableInput` if the path is not a folder or not in a repository, if git refuses it, or if it has no
    commit. Raises `MissingExtra` if git is missing.
    """
    where = Path.cwd() if repo is None else _folder(str(repo))
    place = said(where, "rev-parse", "--git-dir", remedy=NAME)
    try:
        head = said(where, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except UnreadableInput:
        found = f"it has no commit that HEAD names ({place.decode(errors='replace').strip()})"
        raise UnreadableInput(
            f"git history of {where}", found, "commit something, or pass another with --repo"
        ) from None
    shallow = said(where, "rev-parse", "--is-shallow-repository").strip() == b"true"
    return Repository(where, head.decode().strip(), shallow)


def _folder(name: str) -> Path:
    """Return the folder with this name.

    Raises `UnreadableInput`, without a URL in the message, because a URL may contain a password.
    """
    if os.path.isdir(name):
        return Path(name)
    if not name:
        raise UnreadableInput(
            "git history of ''", "the name is empty", f"{NAME}, or omit it for the one around the working directory"
        )
    if not os.path.exists(name) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|[^/]+@[^/]+:", name):
        raise UnreadableInput(
            "git history of a URL", "only local checkouts can be read", "git clone it, and pass the clone with --repo"
        )
    found = "it is not a directory" if os.path.exists(name) else "there is no such directory"
    raise UnreadableInput(f"git history of {name if len(name) <= 200 else name[:197] + '...'}", found, NAME)


def history(repository: Repository, rows: int = SLICE) -> Iterator[Piece]:
    """Yield the history in pieces of complete commits.

    Each piece has ``rows`` events, or more to complete its last commit.

    The log is streamed, so this needs only O(largest piece) memory, besides the memory of git. Raises `UnreadableInput`
    if git fails or prints no log.
    """
    commits: list[Commit] = []
    columns: list[list[object]] = [[] for _ in RAW]
    with spoken(repository.where, *LOG, repository.head) as out:
        for commit, changes in parse_log(tokens(out)):
            commits.append(commit)
            for change in changes:
                text = path_text(change.path)
                for column, value in zip(columns, (text, extension(text), commit.ordinal, *change[1:]), strict=True):
                    column.append(value)
            if len(columns[0]) >= rows:
                yield _piece(commits, columns)
                commits, columns = [], [[] for _ in RAW]
    if commits:
        yield _piece(commits, columns)


def tree(repository: Repository) -> pa.Table:
    """Read the files of the head commit with ``git ls-tree -r``: path, extension, mode and blob. O(files)."""
    columns: list[list[str]] = [[] for _ in TREE]
    with spoken(repository.where, "ls-tree", "-r", "-z", "--full-tree", repository.head) as out:
        for line in tokens(out):
            found = re.fullmatch(rb"(\d{6}) [a-z]+ ([0-9a-f]{40,64})\t(.+)", line, re.DOTALL)
            if found is None:
                raise _garbled("ls-tree", line)
            text = path_text(found[3])
            for column, value in zip(
                columns, (text, extension(text), found[1].decode(), found[2].decode()), strict=True
            ):
                column.append(value)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, TREE, strict=True)], schema=TREE)


def tokens(stream: IO[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    r"""Split a stream at its NUL bytes. A last piece that does not end in a NUL counts too, unless it is empty.

    >>> import io
    >>> list(tokens(io.BytesIO(b"ab\0\0cd"), size=1))
    [b'ab', b'', b'cd']
    """
    rest = b""
    while chunk := stream.read(size):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
    if rest:
        yield rest


def parse_log(words: Iterable[bytes]) -> Iterator[tuple[Commit, list[Change]]]:
    r"""Parse the output of ``git log -z --raw --format=%H%x20%ct``. Return the commits, each with its changes.

    A commit is ``HASH SECONDS``. Each further line is ``:OLDMODE NEWMODE OLDBLOB NEWBLOB STATUS``, followed by a path.
    Only the first line of a commit begins with a newline. A path may contain any text, so it is not parsed. Raises
    `UnreadableInput` if the output does not have this form.

    >>> log = [b"c0ffee 7", b"\n:000000 100644 00 1f A", b"a.txt", b":100644 000000 2e 00 D", b":b", b"beef 9"]
    >>> for commit, changes in parse_log(log): print(*commit, *map(tuple, changes))
    1 c0ffee 7 (b'a.txt', None, None, '100644', '1f') (b':b', '100644', '2e', None, None)
    2 beef 9
    """
    commit: Commit | None = None
    changes: list[Change] = []
    stream = iter(words)
    for word in stream:
        line = word.removeprefix(b"\n")
        if line.startswith(b":"):
            path = next(stream, b"")
            if commit is None or not path:
                raise _garbled("log", word)
            changes.append(_change(line, path))
            continue
        if commit is not None:
            yield commit, changes
            changes = []
        found = re.fullmatch(rb"([0-9a-f]+) (-?\d+)", line)
        if found is None:
            raise _garbled("log", word)
        commit = Commit(1 if commit is None else commit.ordinal + 1, found[1].decode(), int(found[2]))
    if commit is not None:
        yield commit, changes


def _change(line: bytes, path: bytes) -> Change:
    sides = line[1:].decode("ascii", "replace").split(" ")
    if len(sides) != 5 or sides[4] not in ("A", "M", "D", "T"):
        raise _garbled("log", line)
    old_mode, mode, old_blob, blob, _ = sides
    old = (None, None) if old_mode == "000000" else (old_mode, old_blob)
    new = (None, None) if mode == "000000" else (mode, blob)
    return Change(path, *old, *new)


def _piece(commits: list[Commit], columns: list[list[object]]) -> Piece:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW, strict=True)]
    return Piece(commits, pa.RecordBatch.from_arrays(arrays, schema=RAW))


def _garbled(command: str, line: bytes) -> UnreadableInput:
    return UnreadableInput(
        f"git {command}", f"it printed {line[:200]!r}", "report it, with the output of git --version"
    )

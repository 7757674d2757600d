"""Reading a Debian machine's dpkg log as upserts: each status line sets a package to a (status, version).

Invariant: events come in the order dpkg wrote them, over rotated and compressed logs too, with a running ``seq`` that
settles the many ties within a second, and with times that never go back. The stamps are local time without a zone, so
the clock may be set back (then the time stays at the greatest seen, and that is counted); logs rotate by number, oldest
highest; and a package that changes its architecture (foo:all to foo:amd64) leaves its old name behind half-installed
without a line that ends it, which is made up for here. It does not look inside packages, and it cannot know what was
installed before the log begins.

>>> log = ["2026-01-02 03:04:05 upgrade foo:all 1 2", "2026-01-02 03:04:05 status half-installed foo:all 1",
...        "2026-01-02 03:04:06 status unpacked foo:amd64 2", "2026-01-02 03:04:07 status not-installed bar:all <none>"]
>>> for event in Reader().events(log): print(event)
Event(package='foo:all', status='half-installed', version='1', gone=False, at=1767323045, seq=1)
Event(package='foo:all', status=None, version=None, gone=True, at=1767323046, seq=2)
Event(package='foo:amd64', status='unpacked', version='2', gone=False, at=1767323046, seq=3)
Event(package='bar:all', status=None, version=None, gone=True, at=1767323047, seq=4)
"""

from __future__ import annotations

import gzip
import re
import subprocess
import zlib
from calendar import timegm
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import strptime
from typing import Final, NamedTuple

import pyarrow as pa

from ddflow.errors import MissingExtra, UnreadableInput

PACKAGES: Final = pa.schema([("package", pa.string()), ("status", pa.string()), ("version", pa.string())])
LINE: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (\S+) (.*)")
SHOW: Final = r"${Package}:${Architecture}\t${db:Status-Status}\t${Version}\n"


class Event(NamedTuple):
    """One upsert: package with architecture, what it is now, whether it is gone, when, and its place in the log."""

    package: str
    status: str | None
    version: str | None
    gone: bool
    at: int
    """Seconds since 1970 of the log's own local time."""
    seq: int


class Replaced(NamedTuple):
    """What an ``upgrade``, ``remove`` or ``purge`` line says, before it happens: the version the package has."""

    package: str
    version: str
    at: int


class Reader:
    """Reads log lines one by one; what it has counted on the way is in its fields."""

    def __init__(self) -> None:
        self.lines = self.other = self.set_back = 0
        self.replaced: list[Replaced] = []
        """The lines that name the version a package had, for packages last heard of in an earlier second."""
        self._at = self._seq = 0
        self._heard: dict[str, int] = {}
        self._upgraded: dict[str, str] = {}
        self._leaving: dict[str, str] = {}

    def events(self, lines: Iterable[str]) -> Iterator[Event]:
        """The upserts in the lines; lines that are not dpkg's are passed over, counted in ``other``.  O(1) a line."""
        for line in lines:
            self.lines += 1
            found = LINE.fullmatch(line.rstrip("\n"))
            if found is None:
                self.other += 1
                continue
            stamp = timegm(strptime(found[1], "%Y-%m-%d %H:%M:%S"))
            self.set_back += stamp < self._at
            self._at = max(self._at, stamp)
            words = found[3].split(" ")
            if found[2] == "status" and len(words) == 3:
                yield from self._status(*words)
            elif found[2] in ("upgrade", "remove", "purge") and len(words) == 3:
                self._action(found[2], words[0], words[1])

    def _status(self, status: str, package: str, version: str) -> Iterator[Event]:
        name = package.partition(":")[0]
        if status == "half-installed" and self._upgraded.get(name) == package:
            self._leaving[name] = self._upgraded.pop(name)
        elif status == "unpacked" and (left := self._leaving.pop(name, package)) != package:
            # The files of another architecture have taken its place; dpkg forgets the old one without a word.
            yield self._event(left, None, None)
        gone = status == "not-installed"
        yield self._event(package, None if gone else status, None if gone else version)

    def _event(self, package: str, status: str | None, version: str | None) -> Event:
        self._seq += 1
        self._heard[package] = self._at
        return Event(package, status, None if version == "<none>" else version, status is None, self._at, self._seq)

    def _action(self, action: str, package: str, version: str) -> None:
        if action == "upgrade":
            self._upgraded[package.partition(":")[0]] = package
        # Heard of in this very second, the version may come and go within it, and no diff would show it.
        if version != "<none>" and self._heard.get(package, self._at) < self._at:
            self.replaced.append(Replaced(package, version, self._at))


def logs(root: Path = Path("/")) -> list[Path]:
    """The dpkg logs of the system at ``root``, oldest first.  Raises `UnreadableInput` where there are none."""
    folder = root / "var/log"
    numbered: list[tuple[int, Path]] = []
    for path in folder.glob("dpkg.log*"):
        if found := re.fullmatch(r"dpkg\.log(?:\.(\d+))?(?:\.gz)?", path.name):
            numbered.append((int(found[1] or 0), path))
    if not numbered:
        raise UnreadableInput(f"the dpkg log in {folder}", "there is no dpkg.log", "run it on a Debian machine")
    return [path for _, path in sorted(numbered, reverse=True)]


def lines(paths: Iterable[Path]) -> Iterator[str]:
    """The lines of the logs, one after the other, streamed; those named ``.gz`` are decompressed."""
    for path in paths:
        try:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as log:
                for line in log:
                    yield line.decode("utf-8", "backslashreplace")
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableInput(f"the dpkg log {path}", str(error), "make it readable, or move it away") from None


def installed(root: Path = Path("/")) -> pa.Table:
    """What ``dpkg-query`` says of every package it knows: package with architecture, status, version.

    Raises `MissingExtra` without dpkg-query, `UnreadableInput` if it fails.
    """
    asked = f"dpkg-query of {root}"
    command = ["dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", "--show", f"--showformat={SHOW}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        raise MissingExtra(asked, "there is no dpkg-query on PATH", "run it on a Debian machine") from None
    if done.returncode != 0:
        found = " ".join(done.stderr.decode(errors="replace").split()) or f"exit code {done.returncode}"
        raise UnreadableInput(asked, f"it says: {found}", "see what dpkg-query says")
    return parse_query(done.stdout.decode("utf-8", "backslashreplace"))


def parse_query(text: str) -> pa.Table:
    r"""The table in what dpkg-query shows in the format `SHOW`; packages known but not installed at all are left out.

    >>> parse_query("foo:all\tinstalled\t1.0\nbar:amd64\tnot-installed\t\n").to_pylist()
    [{'package': 'foo:all', 'status': 'installed', 'version': '1.0'}]
    """
    rows = [line.split("\t") for line in text.splitlines()]
    kept = [dict(zip(PACKAGES.names, row, strict=True)) for row in rows if row[1] != "not-installed"]
    return pa.Table.from_pylist(kept, PACKAGES)

"""Leftovers: files in a folder of outputs that no committed epoch has.

Invariant: what is shown there and named by a version that is kept is not touched, nor is any file that ddflow did not
write.  Why that is not trivial: whoever died between writing an output and committing it left a hidden file, which
looks like that of a commit under way; and after a rollback files are shown of epochs that are none any more.  Those are
hidden again under the name that they had before they were shown, so that whoever goes forth to such a version finds
them; and hidden files that no version names are deleted when they have been so for long.  A folder that is not there,
or not on this machine, has no leftovers.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     there = os.path.join(place, of("counts"))
...     os.mkdir(there)
...     for name in ("000000000001-00ff00ff00ff00ff-0.parquet", "000000000002-00ff00ff00ff00ff-1.parquet"):
...         open(os.path.join(there, name), "x").close()
...     for path in later(place, ["counts"], 1):
...         hide(path)
...     sorted(os.listdir(there))
['.00ff00ff00ff00ff-1.parquet', '000000000001-00ff00ff00ff00ff-0.parquet']
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from ddflow.errors import StorageFailed
from ddflow.store.outputs import of

SHOWN: Final = re.compile(r"([0-9]{12,})-[0-9a-f]{16}-[0-9]{1,12}\.parquet")
HIDDEN: Final = re.compile(r"\.([0-9a-f]{16}-[0-9]{1,12}\.parquet)")
PLACE: Final = re.compile(r"[0-9a-f]{16}")
"""What the folder of an output is called."""


class Hidden(NamedTuple):
    """A hidden file: its ``path``, the ``name`` that a manifest would have for it, when it was ``changed``."""

    path: str
    name: str
    changed: float

    def before(self, written: int, orphans: float) -> bool:
        """Whether it is older than a manifest (``written``, in ms) and than ``orphans`` seconds."""
        return self.changed < written / 1000 and time.time() - self.changed >= orphans


def hidden(folder: str | None) -> list[Hidden]:
    """The hidden files of a folder of outputs.  O(its files).  Raises `StorageFailed`."""
    found = []
    for name, path in _files(folder):
        match = HIDDEN.fullmatch(name)
        if match is not None:
            with suppress(OSError):  # shown meanwhile
                found.append(Hidden(path, match[1], os.stat(path, follow_symlinks=False).st_mtime))
    return found


def remove(files: Iterable[Hidden]) -> None:
    """Delete hidden files; one that cannot be stays.  O(files)."""
    for file in files:
        with suppress(OSError):
            os.unlink(file.path)


def later(folder: str, outputs: Iterable[str], epoch: int) -> list[str]:
    """The files that are shown of some outputs' epochs after one: their paths.  O(files).  Raises `StorageFailed`."""
    places = {of(name) for name in outputs}
    found = ((SHOWN.fullmatch(name), path) for name, path in _files(folder))
    return sorted(path for match, path in found if match is not None and int(match[1]) > epoch
                  and os.path.basename(os.path.dirname(path)) in places)  # fmt: skip


def hide(path: str) -> None:
    """Hide a file that is shown; it counts as changed now.  One that is not there is hidden.  O(1).

    Raises `StorageFailed`.
    """
    there, name = os.path.split(path)
    try:
        with suppress(FileNotFoundError):
            os.utime(path)
            os.rename(path, os.path.join(there, f".{name.partition('-')[2]}"))
    except OSError as error:
        raise _failed(path, error) from None


def _files(folder: str | None) -> list[tuple[str, str]]:
    """Name and path of every file in the outputs' folders."""
    if folder is None or not os.path.isdir(folder):
        return []
    try:
        places = [os.path.join(folder, each) for each in os.listdir(folder) if PLACE.fullmatch(each)]
        return [(name, os.path.join(place, name)) for place in places for name in os.listdir(place)]
    except OSError as error:
        raise _failed(folder, error) from None


def _failed(path: str, error: OSError) -> StorageFailed:
    return StorageFailed(f"tidy the outputs: {path}", f"{error.strerror or error}", "mend it, and try again")

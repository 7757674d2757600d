"""Leftovers: files in a folder of outputs that no committed epoch has.

Invariant: what is shown there and named by a version that is kept is not touched, nor is any file that ddflow did not
write, nor a folder of another state.  Whoever died between writing an output and committing it left a
hidden file, which looks like that of a commit under way; and after a rollback files are shown of epochs that are none
any more.  Those are hidden again under the name that they had before they were shown, so that whoever goes forth to
such a version finds them; and hidden files that no version names are deleted when they have been so for long: what was
committed is shown by then (``showing``).  A folder that is not there, or not on this machine, has no leftovers.

>>> import os, tempfile, pyarrow as pa
>>> from ddflow.storage.outputs import of
>>> with tempfile.TemporaryDirectory() as place:
...     folder, rows = OutputFolder(place, "00ff00ff00ff00ff"), pa.table({"n": [1, 2]})
...     folder.claim("0" * 32, "state", ["counts"])
...     for epoch in (1, 2):
...         folder.show("counts", epoch, folder.put("counts", rows))
...     for path, name in later(folder, 1):
...         folder.hide(name, path)
...     sorted(os.listdir(os.path.join(place, of("counts"))))
['.00ff00ff00ff00ff-2.parquet.hidden', '000000000001-00ff00ff00ff00ff-1.parquet']
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from ddflow.storage.manifest import Manifest
from ddflow.storage.outputs import READABLE, OutputFolder, disk_of
from ddflow.storage.protocol import Store

SHOWN: Final = re.compile(r"([0-9]{12,})-([0-9a-f]{16}-[0-9]{1,12}\.parquet)")
HIDDEN: Final = re.compile(r"\.([0-9a-f]{16}-[0-9]{1,12}\.parquet)\.hidden")
PLACE: Final = re.compile(rf"(?:[A-Za-z0-9][A-Za-z0-9._]{{0,{READABLE - 1}}}-)?[0-9a-f]{{16}}")
"""What the folder of an output is called."""


class Hidden(NamedTuple):
    """A hidden file: its ``path``, the ``name`` that a manifest would have for it, when it was ``changed``, its ``age``
    in seconds."""

    path: str
    name: str
    changed: float
    age: float

    def before(self, written: int, orphans: float) -> bool:
        """Whether it is older than a manifest (``written``, in ms) and than ``orphans`` seconds."""
        return self.changed < written / 1000 and self.age >= orphans


def owned(store: Store, manifest: Manifest | None, deleting: bool) -> OutputFolder | None:
    """The folder that a manifest names, where it does not belong to another state; else None.  O(1).

    ``deleting``: only where it says that it is this state's, at this place: a copy knows less of what is committed.
    Raises `CorruptState` where what it says is damaged, `StorageFailed`.
    """
    if manifest is None or manifest.folder is None:
        return None
    folder = OutputFolder(manifest.folder, store.nonce, disk=disk_of(store))
    mark = folder.mark()
    if mark is None:
        return None if deleting else folder
    return folder if mark.state == manifest.id and (mark.at == store.where or not deleting) else None


def hidden(folder: OutputFolder | None) -> list[Hidden]:
    """The hidden files of a folder of outputs.  O(its files).  Raises `StorageFailed`."""
    found = []
    for name, path in _files(folder):
        match = HIDDEN.fullmatch(name)
        if match is not None and folder is not None:
            with suppress(OSError):  # shown meanwhile
                changed = folder.disk.status(path).changed
                found.append(Hidden(path, match[1], changed, folder.disk.now() - changed))
    return found


def remove(folder: OutputFolder | None, files: Iterable[Hidden]) -> None:
    """Delete hidden files; one that cannot be stays.  O(files)."""
    for file in files:
        if folder is not None:
            folder.site.tidy(file.path)


def later(folder: OutputFolder, epoch: int) -> list[tuple[str, str]]:
    """The files that are shown of epochs after one: their paths, the names that manifests have for them.  O(files).

    Raises `StorageFailed`.
    """
    found = ((path, SHOWN.fullmatch(name)) for name, path in _files(folder))
    return sorted((path, match[2]) for path, match in found if match is not None and int(match[1]) > epoch)


def _files(folder: OutputFolder | None) -> list[tuple[str, str]]:
    """Name and path of every file in the outputs' folders."""
    if folder is None:
        return []
    disk, out = folder.disk, list[tuple[str, str]]()
    with folder.site.guarded("look for leftovers"):
        for place in disk.names(folder.path) if folder.site.is_there(folder.path) else ():
            there = folder.site.below(place)
            if PLACE.fullmatch(place) and disk.status(there).kind == "folder":
                out += [(name, f"{there}/{name}") for name in disk.names(there)]
    return out

"""Folders to spill to, inside a state: private to one open store, gone with it.

Invariant: a folder that `Scratch.folder` gave is used by nobody else, and whatever is in ``spill/`` belongs to a store
that is open, or is removed when the next one opens. Whether a store is open is told by a lock that its process holds,
which the sweeper may take in the moment before the owner does; the owner then takes another name. A forked child
removes nothing of its parent's. Nothing here is synced: spilled bytes need not survive.

    spill/00112233aabbccdd/ddflow-spill.lock      spill/00112233aabbccdd/0/

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as spill:
...     scratch = Scratch(spill)
...     Folder.open(scratch.folder()).close()
...     clear(spill)
...     len(os.listdir(spill))
...     scratch.close()
...     os.listdir(spill)
1
[]
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import weakref

from ddflow.errors import SpillInUse, SpillRefused
from ddflow.storage.folder_lock import Claim
from ddflow.storage.spill_folder import Folder

_OURS = re.compile(r"[0-9a-f]{16}")
_TRIES = 5


class Scratch:
    """``spill``: the folder for those of all stores.  Raises `SpillFull`, `SpillFailed`, `SpillRefused`, `OSError`."""

    def __init__(self, spill: str) -> None:
        self._claim = _claimed(spill)
        self._numbers = itertools.count()
        self._end = weakref.finalize(self, _leave, self._claim)

    def folder(self) -> str:
        """A fresh folder, empty, which only this user may enter.  O(1).  Raises `OSError`."""
        path = os.path.join(self._claim.path, str(next(self._numbers)))
        _private(path)
        return path

    def close(self) -> None:
        """Remove the folders, those that are empty; what others hold goes when they let go.  Twice is harmless."""
        self._end()


def clear(spill: str) -> None:
    """Remove what stores left that are gone.  Never fails: what stays is tried again.  O(files)."""
    for name in os.listdir(spill):
        if _OURS.fullmatch(name):
            with contextlib.suppress(OSError):  # held by a store that is open, or another user's
                claim = Claim.take(os.path.join(spill, name))
                for below in _folders(claim.path):
                    with contextlib.suppress(OSError):
                        Folder.open(below).close()
                _leave(claim)


def _claimed(spill: str) -> Claim:
    """A new folder, claimed."""
    for left in reversed(range(_TRIES)):
        path = os.path.join(spill, os.urandom(8).hex())
        _private(path)
        try:
            return Claim.take(path)
        except (SpillInUse, SpillRefused):  # a sweeper was quicker
            if not left:
                raise
    raise AssertionError


def _private(path: str) -> None:
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)  # whatever the umask


def _leave(claim: Claim) -> None:
    if claim.held:  # and not disowned by a fork
        for path in _folders(claim.path):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        claim.release()
        with contextlib.suppress(OSError):
            os.rmdir(claim.path)


def _folders(path: str) -> list[str]:
    return [os.path.join(path, name) for name in os.listdir(path) if name.isdecimal()]

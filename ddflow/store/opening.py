"""Opening a store by what a user wrote: a folder, ``s3://bucket/prefix``, or a store that is open already.

Invariant: what is opened for reading only creates, changes and proves nothing.  Why it stands apart: `s3` needs a
package that not everybody has, and is only imported for an address that asks for it.

>>> from ddflow.store.memory import MemoryStore
>>> store = MemoryStore()
>>> open_store(store) is store
True
"""

from __future__ import annotations

import os
from typing import Any

from ddflow.errors import StateRefused
from ddflow.store.blob import Store
from ddflow.store.local import LocalStore


def open_store(given: Any, *, trust: str = "owner", create: bool = True, readonly: bool = False) -> Store:
    """The store at an address.  ``create``: make one where there is none.  ``trust``: see `LocalStore`.

    Raises `StateRefused` for what is no address, and what the stores raise; `MissingExtra` without the S3 client.
    """
    if isinstance(given, Store):
        return given
    if not isinstance(given, str | os.PathLike):
        raise StateRefused(f"a state at {given!r}", "that is no address", "give a folder, or s3://bucket/prefix")
    if isinstance(given, str) and given.startswith("s3://"):
        from ddflow.store.s3 import S3Store

        return S3Store(given, create=create, readonly=readonly)
    return LocalStore(given, create=create, trust=trust, readonly=readonly)

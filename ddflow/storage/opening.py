"""Open the store at an address: a folder, or ``s3://bucket/prefix``. A store that is already open is accepted too.

Guarantees: opening a store for reading creates, changes and tests nothing. An address with an unknown scheme is
refused, and never becomes a folder. The S3 client is an optional package, so `s3` is imported only for S3 addresses.

>>> from ddflow.storage.memory import MemoryStore
>>> store = MemoryStore()
>>> open_store(store) is store
True
>>> open_store("hdfs://host/orders")
Traceback (most recent call last):
    ...
ddflow.errors.StateRefused: open the state hdfs://host/orders: hdfs:// is not supported; use a folder, without a ...
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ddflow.errors import StateRefused
from ddflow.storage import address
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.object_store import CLOUDS
from ddflow.storage.protocol import Store

State = str | os.PathLike[str] | Store
"""The address of a state, or the open store of the state. An address is a folder or ``s3://bucket/prefix``."""
Trust = Literal["owner", "group"]


def check_state_address(given: Any) -> str | os.PathLike[str]:
    """Check the address of a state and return it unchanged, without opening the state. O(1).

    Raises `StateRefused` for a value that is not an address.
    """
    if not isinstance(given, str | os.PathLike):
        # The message does not show the value, which may contain a password.
        raise StateRefused("open a state", f"{type(given).__name__} is not an address", address.EITHER)
    if _is_bucket_address(given):
        return given
    if (scheme := address.parse_scheme(given).lower()) in CLOUDS:  # pathlib turns a URL into s3:/bucket
        raise StateRefused(
            f"open the state {address.mask_address(given)}",
            f"it is not of the form {scheme}://bucket/prefix",
            "use such a URL, as text with a lower-case scheme",
        )
    found: str | os.PathLike[str] = address.require_folder(given, "open the state", remedy=address.EITHER)
    return found


def _is_bucket_address(given: str | os.PathLike[str]) -> bool:
    return isinstance(given, str) and given.startswith(tuple(f"{scheme}://" for scheme in CLOUDS))


def open_store(given: Any, *, trust: str = "owner", create: bool = True, readonly: bool = False) -> Store:
    """Open the store at an address.

    ``create``: create a store if none exists. ``trust``: see `LocalStore`. Raises `StateRefused` for a value that is
    not an address, `MissingExtra` without the S3 client, and the errors of the stores.
    """
    if isinstance(given, Store):
        return given
    given = check_state_address(given)
    if _is_bucket_address(given):
        from ddflow.storage.s3 import S3Store

        return S3Store(str(given), create=create, readonly=readonly)
    return LocalStore(given, create=create, trust=trust, readonly=readonly)


@contextmanager
def open_existing_store(given: Any, *, trust: str = "owner", readonly: bool = True) -> Iterator[Store]:
    """Open the store of an existing state, as `open_store` does, and close it at the end.

    A store that was already open stays open.
    """
    store = open_store(given, trust=trust, create=False, readonly=readonly)
    try:
        yield store
    finally:
        if store is not given:
            store.close()

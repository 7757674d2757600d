"""An address: what a user wrote for where something of his is to live, looked at before it is taken for a folder.

Invariant: nothing with a scheme becomes a folder: ``gs://bucket/orders`` would be one called ``gs:`` below the working
directory, and the data would stay on one machine without a word.  What `pathlib` leaves of a URL, ``s3:/bucket``,
counts as one.  Messages show an address by `public`, without the user and password, query or fragment that it may
carry.  It opens nothing.

>>> public("s3://KEY:SEC/RET@bucket/orders?X-Amz-Signature=00ff"), public("state/a@b")
('s3://...@bucket/orders?...', 'state/a@b')
>>> folder("s3a://KEY:SECRET@bucket/orders", "write outputs to")
Traceback (most recent call last):
    ...
ddflow.errors.StateRefused: write outputs to s3a://...@bucket/orders: s3a:// is not supported; give a folder of this ...
"""

import os
import re
from typing import Any, Final

from ddflow.errors import DdflowError, StateRefused

LOCAL: Final = "give a folder of this machine's file systems, without a scheme"
EITHER: Final = "give a folder, without a scheme, or s3://bucket/prefix"
_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):/")
_PRIVATE = re.compile(r"(:/+)[^\n]*@")
_BEHIND = re.compile(r"([?#]).*", re.DOTALL)


def scheme(given: Any) -> str:
    """The scheme of an address as it is written, "" for a folder's.  O(length)."""
    found = _URL.match(_text(given))
    return found[1] if found else ""


def public(given: Any) -> str:
    """An address for messages.  A key may have any sign in it, so all up to the last "@" is left out.  O(length)."""
    text = _text(given)
    return _BEHIND.sub(r"\1...", _PRIVATE.sub(r"\1...@", text)) if scheme(text) else text


def folder(given: Any, asked: str, error: type[DdflowError] = StateRefused, remedy: str = LOCAL) -> Any:
    """The same address, where it is a folder's.  Raises ``error`` for one with a scheme.  O(length)."""
    if found := scheme(given):
        raise error(f"{asked} {public(given)}", f"{found}:// is not supported", remedy)
    return given


def _text(given: Any) -> str:
    return os.fsdecode(given) if isinstance(given, str | bytes | os.PathLike) else ""

"""Which files an inventory names, told from its bytes alone.

Invariant: every file that an inventory names is found, whatever else is in it, since a file is three values in a list
(`Blob`) and no text of a user can hold an unescaped quote. A commit looks for names only, which costs less than a walk
over what it has just written. What the files are for is known to who reads the inventory as a record.

>>> blob, other = Blob("00ff00ff00ff00ff-1.arrow", 4, bytes(16)), Blob("00ff00ff00ff00ff-7.arrow", 4, bytes(16))
>>> data = encoded({"rows": [{"file": blob}]})
>>> files_in(data) == [blob], names_in(data)
(True, {'00ff00ff00ff00ff-1.arrow'})
>>> files_in(renamed(data, {blob.name: other})) == [other]
True
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.json import Decoder

from ddflow.storage.fields import encoded
from ddflow.storage.protocol import Blob

PARQUET: Final = ".parquet"
_NAME: Final = re.compile(rb'"([0-9a-f]{16}-[0-9]{1,12}\.arrow)"')
_FILE: Final = re.compile(
    rb'\[\s*"([0-9a-f]{16}-[0-9]{1,12}\.arrow)"\s*,\s*[0-9]{1,18}\s*,\s*"[A-Za-z0-9+/]{22}=="\s*\]'
)
_BLOB: Final = Decoder(Blob)


def names_in(inventory: Any) -> set[str]:
    """Return the names of all files in an inventory, and no other text.  O(bytes)."""
    return {name.decode() for name in _NAME.findall(inventory)}


def files_in(inventory: Any) -> list[Blob]:
    """Return all files in an inventory, in their order.  O(bytes)."""
    return [_BLOB.decode(found[0]) for found in _FILE.finditer(inventory)]


def renamed(inventory: Any, files: Mapping[str, Blob]) -> bytes:
    """Replace the files that an inventory names.  ``files``: new files, by the names of the old ones.  O(bytes)."""
    return _FILE.sub(lambda found: encoded(files[found[1].decode()]), inventory)


def inside(blob: Blob) -> bool:
    """Return whether a file belongs to the state, and not to a folder of outputs."""
    return not blob.name.endswith(PARQUET)


def names_inside(blobs: Iterable[Blob]) -> set[str]:
    """Return the names of the files that belong to the state.  O(blobs)."""
    return {blob.name for blob in blobs if not blob.name.endswith(PARQUET)}

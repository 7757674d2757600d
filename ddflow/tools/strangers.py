"""Strangers: what lies in the folder of a state and was not put there by it.

Invariant: nothing is opened, and nothing is deleted; names alone decide. What a writer has under way, and what the
state's own folders hold, is no stranger.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     store = LocalStore(place)
...     with open(f"{place}/notes.txt", "w") as file:
...         _ = file.write("mine")
...     found = list(strangers(store))
...     store.close()
>>> found
['notes.txt']
"""

import re
from collections.abc import Iterator
from typing import Final

from ddflow.storage.local import LocalStore
from ddflow.storage.site import TEMPORARY
from ddflow.storage.state_folder import INSIDE

NAMED: Final = re.compile(r"[0-9a-f]{16}-[0-9]{1,12}\.(?:arrow|json)")
"""The name of a state's file."""
_NUMBER: Final = re.compile(r"[0-9]{16}")


def strangers(store: LocalStore) -> Iterator[str]:
    """List the files in the folder of a state that ddflow did not write. O(names)."""
    place = store.site
    for name in sorted(store.disk.names(place.path)):
        if name not in (*INSIDE, "spill"):
            yield name
    ours = {
        "blobs": re.compile(rf"{NAMED.pattern}|[0-9a-f]{{16}}-[0-9]+\.part"),
        "marks": _NUMBER,
        "manifests": re.compile(f"{_NUMBER.pattern}|{TEMPORARY.pattern}"),
    }
    for folder, known in ours.items():
        names = store.disk.names(place.below(folder)) if folder in store.disk.names(place.path) else []
        yield from (f"{folder}/{name}" for name in sorted(names) if not known.fullmatch(name))

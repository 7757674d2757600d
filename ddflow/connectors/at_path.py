"""Errors of rows that a path gave: they name it, and call a row of a file what its reader calls it.

Invariant: an error keeps its class, and what it says but for the place. Only what has failed looks at the path again,
so rows that are given otherwise, and those that are well, cost nothing. Where a path is several files, which of them a
row is in is not known here, so it stays counted from 0 over all of them.

>>> import tempfile
>>> from pathlib import Path
>>> from ddflow.errors import NullKey
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (path := Path(folder) / "a.csv").write_text("id\\n7\\n")
...     error = at_path(path, NullKey("rows for 'orders'", "null in row 3, counted from 0", "mend it"))
...     str(error).removeprefix(folder)
"/a.csv: rows for 'orders': null in row 5; mend it"
"""

import os
import re
from contextlib import closing, suppress
from typing import Any, Final

from ddflow.errors import DdflowError

COUNTED: Final = re.compile(r"row (\d+), counted from 0")
"""A row of a call, as messages call it."""


def is_path(given: Any) -> bool:
    """Whether rows are given by where they are."""
    return isinstance(given, str | os.PathLike)


def at_path(given: Any, error: DdflowError) -> DdflowError:
    """The error of the rows ``given``, a path, which it names.  O(1), and looking at a file."""
    from ddflow.connectors.files import FilePosition, open_files  # its readers take time to load
    from ddflow.connectors.files.places import STDIN

    path, found = os.fspath(given), error.found
    files = [path]
    if path == STDIN:  # which cannot be looked at again
        return error
    with suppress(DdflowError, OSError), closing(open_files([path])) as source:
        files = source.files
        if len(files) == 1:
            position = FilePosition(files[0])
            found = COUNTED.sub(lambda row: source.row(position, int(row[1])), found)
    if any(each in error.asked or each in error.found for each in (path, *files)):
        return error
    return type(error)(f"{path}: {error.asked}", found, error.remedy)

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
    from ddflow.connectors.files import FileOptions, FilePosition, open_files  # its readers take time to load
    from ddflow.connectors.files.places import STDIN, listed
    from ddflow.connectors.files.text_path import dialect_of

    path, found = os.fspath(given), error.found
    files = [path]
    if path == STDIN:  # which cannot be looked at again
        return error
    with suppress(DdflowError, OSError):
        files = [each.name for each in listed([path])]
    if len(files) == 1 and COUNTED.search(found):
        with (
            suppress(DdflowError, OSError),
            closing(open_files([path], how=FileOptions(dialect=dialect_of(given)))) as of,
        ):
            found = COUNTED.sub(lambda row: of.row(FilePosition(files[0]), int(row[1])), found)
    if any(each in error.asked or each in error.found for each in files):
        return error
    return type(error)(f"{files[0] if len(files) == 1 else path}: {error.asked}", found, error.remedy)

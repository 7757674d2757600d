"""Errors of rows that a path or a source of files gave: they name it, and call a row what its file's reader calls it.

Invariant: an error keeps its class, and what it says but for the place. Only what has failed looks at the path again,
so rows that are given otherwise, and those that are well, cost nothing. Where a path is several files, which of them a
row is in is not known here, so it stays counted from 0 over all of them. A source says where each batch stands; an
error that names no row may be of any of the files.

>>> import tempfile
>>> from pathlib import Path
>>> from ddflow.errors import NullKey
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (path := Path(folder) / "a.csv").write_text("id\\n7\\n")
...     error = at_path(path, NullKey("rows for 'orders'", "null in row 3, counted from 0", "mend it"))
...     str(error).removeprefix(folder)
"/a.csv: rows for 'orders': null in row 5; mend it"
>>> with at_spots([(Spot("1.csv", 2), 3), (Spot("2.csv", 2), 9)]):
...     raise NullKey("rows for 'orders'", "null in row 3, counted from 0", "mend it")
Traceback (most recent call last):
    ...
ddflow.errors.NullKey: 2.csv: rows for 'orders': null in row 2; mend it
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Final

from ddflow.connectors.attached import Spot
from ddflow.errors import DdflowError

COUNTED: Final = re.compile(r"row (\d+), counted from 0")
"""A row of a call, as messages call it."""
_COMPUTED: Final = re.compile(r"\(row \d+: ")
"""A row that an operator computes with, which is none of a file; its values are said behind it."""
FEW: Final = 3
"""So many files an error names at most, where it may be of any of them; of more the first and the last."""


def at_row(found: str, row: Callable[[int], str]) -> str:
    """What was found, with rows of a call as ``row`` calls them.

    >>> at_row("null in row 3, counted from 0", "line {}".format), at_row("overflow (row 0: n = 7)", str)
    ('null in line 3', 'overflow (n = 7)')
    """
    return _COMPUTED.sub("(", COUNTED.sub(lambda each: row(int(each[1])), found))


def is_path(given: Any) -> bool:
    """Whether rows are given by where they are."""
    return isinstance(given, str | os.PathLike)


def at_path(given: Any, error: DdflowError) -> DdflowError:
    """The error of the rows ``given``, a path, which it names.  O(1), and looking at a file."""
    from ddflow.connectors.files import FileOptions, FilePosition, open_files  # its readers take time to load
    from ddflow.connectors.files.file_path import dialect_of
    from ddflow.connectors.files.places import STDIN, listed

    path, found = os.fspath(given), error.found
    files = [path]
    if path == STDIN:  # which cannot be looked at again
        return error
    with suppress(DdflowError, OSError):
        files = [each.name for each in listed([path], dialect_of(given).kind)]
    if len(files) == 1 and COUNTED.search(found):
        with (
            suppress(DdflowError, OSError),
            closing(open_files([path], how=FileOptions(dialect=dialect_of(given)))) as of,
        ):
            found = at_row(found, partial(of.row, FilePosition(files[0])))
    if any(each in error.asked or each in error.found for each in files):
        return error
    return type(error)(f"{files[0] if len(files) == 1 else path}: {error.asked}", found, error.remedy)


@contextmanager
def at_spots(spots: Sequence[tuple[Spot, int]]) -> Iterator[None]:
    """Errors about the rows of a call name their file.  ``spots``: where each batch stands, and its rows, in order.

    O(batches), where it fails.  What is of no rows, such as a full disk, names none.
    """
    try:
        yield
    except DdflowError as error:
        files = list(dict.fromkeys(spot.file for spot, _ in spots))
        if not isinstance(error, ValueError | OverflowError) or any(each in str(error) for each in files):
            raise
        if files:
            if (row := COUNTED.search(error.found)) is not None:
                files = [_spot(spots, int(row[1]))[0]]
            error.found = at_row(error.found, lambda row: f"row {_spot(spots, row)[1]:,}")
            error.asked = f"{named(files)}: {error.asked}"
        raise


def named(files: Sequence[str]) -> str:
    """Files as text: of more than a few the first and the last.

    >>> named(["a.csv", "b.csv"]), named(["1.csv", "2.csv", "3.csv", "4.csv"])
    ('a.csv, b.csv', '1.csv ... 4.csv (4 files)')
    """
    return f"{files[0]} ... {files[-1]} ({len(files):,} files)" if len(files) > FEW else ", ".join(files)


def _spot(spots: Sequence[tuple[Spot, int]], row: int) -> tuple[str, int]:
    """The file of a row of all batches, and its number there."""
    for spot, rows in spots:
        if row < rows:
            return spot.file, spot.first + row
        row -= rows
    raise IndexError(row)

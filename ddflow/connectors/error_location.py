"""Errors of rows that a path or a source of files gave: they name it, and call a row what its file's reader calls it.

Invariant: an error keeps its class, and what it says but for the place. Only what has failed looks at the path again,
so rows that are given otherwise, and those that are well, cost nothing. Where a path is several files, which of them a
row is in is not known here, so it stays counted from 0 over all of them. A source says where each batch stands; an
error that names no row may be of any of the files.

>>> import tempfile
>>> from pathlib import Path
>>> from ddflow.errors import NullKey, Row
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (path := Path(folder) / "a.csv").write_text("id\\n7\\n")
...     error = add_file_to_error(path, NullKey("rows for 'orders'", "null in " + Row(3), "mend it"))
...     str(error).removeprefix(folder)
"/a.csv: rows for 'orders': null in row 5; mend it"
>>> with add_file_to_errors([(BatchStart("1.csv", 2), 3), (BatchStart("2.csv", 2), 9)]):
...     raise NullKey("rows for 'orders'", "null in " + Row(3), "mend it")
Traceback (most recent call last):
    ...
ddflow.errors.NullKey: 2.csv: rows for 'orders': null in row 2; mend it
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Final

from ddflow.connectors.api import BatchStart
from ddflow.errors import DdflowError, ErrorText
from ddflow.errors.base import replace_error_texts, set_error_row_names

FEW: Final = 3
"""So many files an error names at most, where it may be of any of them; of more the first and the last."""


def is_path(given: Any) -> bool:
    """Return whether rows are given as a path."""
    return isinstance(given, str | os.PathLike)


def add_file_to_error(given: Any, error: DdflowError) -> DdflowError:
    """Make an error of rows from the path ``given`` name its file and row.  O(1), and looks at the file."""
    from ddflow.connectors.files import FileOptions, FilePosition, open_files  # its readers take time to load
    from ddflow.connectors.files.file_path import build_dialect
    from ddflow.connectors.files.places import STDIN, list_file_locations

    path = os.fspath(given)
    files = [path]
    if path == STDIN:  # which cannot be looked at again
        return error
    with suppress(DdflowError, OSError):
        files = [each.name for each in list_file_locations([path], build_dialect(given).kind)]
    if len(files) == 1 and error.row is not None:
        with (
            suppress(DdflowError, OSError),
            closing(open_files([path], how=FileOptions(dialect=build_dialect(given)))) as of,
        ):
            set_error_row_names(error, partial(of.describe_row, FilePosition(files[0])), files[0])
    if any(each in error.asked or each in error.found for each in files):
        return error
    return replace_error_texts(error, asked=ErrorText(f"{files[0] if len(files) == 1 else path}: ", error.asked))


@contextmanager
def add_file_to_errors(spots: Sequence[tuple[BatchStart, int]]) -> Iterator[None]:
    """Make errors about the rows of a call name their file.  O(batches) for an error.

    ``spots``: the place and the rows of each batch, in order.  An error about no row, such as a full disk, names no
    file.
    """
    try:
        yield
    except DdflowError as error:
        files = list(dict.fromkeys(spot.file for spot, _ in spots))
        if not isinstance(error, ValueError | OverflowError) or any(each in str(error) for each in files):
            raise
        if files:
            if error.row is not None:
                files = [_find_file_and_row(spots, error.row)[0]]
            set_error_row_names(
                error, lambda row: f"row {_find_file_and_row(spots, row)[1]:,}", files[0] if len(files) == 1 else ""
            )
            replace_error_texts(error, asked=ErrorText(f"{format_file_names(files)}: ", error.asked))
        raise


def format_file_names(files: Sequence[str]) -> str:
    """List files for messages: only the first and the last if there are more than a few.

    >>> format_file_names(["a.csv", "b.csv"]), format_file_names(["1.csv", "2.csv", "3.csv", "4.csv"])
    ('a.csv, b.csv', '1.csv ... 4.csv (4 files)')
    """
    return f"{files[0]} ... {files[-1]} ({len(files):,} files)" if len(files) > FEW else ", ".join(files)


def _find_file_and_row(spots: Sequence[tuple[BatchStart, int]], row: int) -> tuple[str, int]:
    """Return the file of a row of all batches, and the row's number in that file."""
    for spot, rows in spots:
        if row < rows:
            return spot.file, spot.first + row
        row -= rows
    raise IndexError(row)

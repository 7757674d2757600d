"""Add the name of a file and the number of a row to errors about rows that were read from files.

An error keeps its class and the rest of its text. The module reads a file again only after an error. Limits: if a path
has several files, row numbers start at 0 and continue from each file to the next. An error without a row can come from
any file of the source, so the error names all files.
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
"""Maximum number of files that an error lists.

An error about more than `FEW` files names only the first and the last file.
"""


def is_path(given: Any) -> bool:
    """Return whether ``given`` is a path."""
    return isinstance(given, str | os.PathLike)


def add_file_to_error(given: Any, error: DdflowError) -> DdflowError:
    """Add the file and the row to an error about rows from the path ``given``.

    O(1), plus the time to read the file again.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ddflow.errors import NullKey, Row
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (path := Path(folder) / "a.csv").write_text("id\\n7\\n")
    ...     error = add_file_to_error(path, NullKey("rows for 'orders'", "null in " + Row(3), "fix it"))
    ...     str(error).removeprefix(folder)
    "/a.csv: rows for 'orders': null in row 5; fix it"
    >>> with add_file_to_errors([(BatchStart("1.csv", 2), 3), (BatchStart("2.csv", 2), 9)]):
    ...     raise NullKey("rows for 'orders'", "null in " + Row(3), "fix it")
    Traceback (most recent call last):
        ...
    ddflow.errors.NullKey: 2.csv: rows for 'orders': null in row 2; fix it
    """
    from ddflow.connectors.files import FileOptions, FilePosition, open_files  # the readers take time to load
    from ddflow.connectors.files.file_path import build_dialect
    from ddflow.connectors.files.places import STDIN, list_file_locations

    path = os.fspath(given)
    files = [path]
    if path == STDIN:  # standard input cannot be read again
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
    """Add the file to errors about the rows of a call.  O(batches) if there is an error.

    ``spots``: the start and the number of rows of each batch, in order.  Errors that are not about values, such as a
    full disk, stay unchanged.
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
    """List files for messages.  If there are more than `FEW` files, the list has only the first and the last file.

    >>> format_file_names(["a.csv", "b.csv"]), format_file_names(["1.csv", "2.csv", "3.csv", "4.csv"])
    ('a.csv, b.csv', '1.csv ... 4.csv (4 files)')
    """
    return f"{files[0]} ... {files[-1]} ({len(files):,} files)" if len(files) > FEW else ", ".join(files)


def _find_file_and_row(spots: Sequence[tuple[BatchStart, int]], row: int) -> tuple[str, int]:
    """Return the file that contains a row, and the number of the row in that file.

    ``row``: the row's number over all batches.
    """
    for spot, rows in spots:
        if row < rows:
            return spot.file, spot.first + row
        row -= rows
    raise IndexError(row)

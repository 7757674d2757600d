"""A path with how its text is written: ``dd.TextPath``.

Invariant: it is a path wherever a path is taken, so nothing but the reader of files asks for what it says besides. It
opens nothing. A path without it is read as CSV is by default: commas (tabs in ``.tsv``), UTF-8, the empty field null.

>>> import os
>>> os.fspath(TextPath("days/1.csv", delimiter=";")), dialect_of(TextPath("days/1.csv", null=["n/a"])).nulls
('days/1.csv', ('n/a',))
>>> dialect_of("days/1.csv") == PLAIN
True
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddflow.connectors.files.kinds import PLAIN, Dialect


@dataclass(frozen=True)
class TextPath(os.PathLike[str]):
    """A file of text that is not written as CSV usually is.  Give it wherever a path of rows is taken.

    Parameters
    ----------
    path : str or path
        A file; for `dd.sources.files` also a folder or a pattern.
    delimiter : str, optional
        What stands between values of CSV, one ASCII character.  By default a comma, in ``.tsv`` a tab.
    null : str or sequence of str
        What means null in CSV, beside the empty field.
    encoding : str
        As Python calls it.  A file that begins with the mark of UTF-8 is UTF-8.

    Raises
    ------
    SpecError
        For a delimiter that is none, and for an encoding that Python does not know.

    Examples
    --------
    >>> import ddflow as dd
    >>> TextPath("days/1.csv", delimiter=";", null="n/a").delimiter
    ';'
    """

    path: str | os.PathLike[str]
    delimiter: str | None = None
    null: str | Sequence[str] = ()
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        dialect_of(self)

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def dialect_of(given: Any) -> Dialect:
    """How the text of a path is written.  Raises `SpecError`."""
    if not isinstance(given, TextPath):
        return PLAIN
    nulls = (given.null,) if isinstance(given.null, str) else tuple(given.null)
    return Dialect(given.delimiter, nulls, given.encoding).checked()


def delimited(path: str, between: str) -> str:
    """What to do about a file whose values another character separates, for the remedy of an error.

    >>> delimited("days/1.csv", ";")
    "is the delimiter ';'? give dd.TextPath('days/1.csv', delimiter=';')"
    """
    return f"is the delimiter {between!r}? give dd.TextPath({path!r}, delimiter={between!r})"

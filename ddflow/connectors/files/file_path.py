"""Declare the format and the text options of files, as a `FilePath` or in an address on the command line.

Guarantees: an option means the same in a `FilePath` and after an address (`in/*.csv:full:delimiter=;`). An invalid
option raises an error that names the option, before a file is opened.

>>> import os
>>> os.fspath(FilePath("days/1.csv", delimiter=";")), build_dialect(FilePath("days/1.csv", null=["n/a"])).nulls
('days/1.csv', ('n/a',))
>>> build_dialect("days/1.csv") == PLAIN
True
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.files.kinds import (
    COMMA,
    GROUPS,
    PLAIN,
    POINT,
    Dialect,
    FileKind,
    find_extension,
    find_kind_by_extension,
    guess_date_formats,
)
from ddflow.connectors.files.spelling import is_parsable_as
from ddflow.errors import ErrorText, FileFix, SpecError
from ddflow.expressions.types import is_number

WRITING: Final = ("delimiter", "null", "encoding", "decimal", "dates", "thousands", "format", "rename")
"""Names of the options of `FilePath`."""
NO_VALUE: Final = frozenset(
    ("-", "--", "–", "—", "?", ".", "..", "#n/a", "k.a.", "missing", "n.a.", "n/a", "na", "nan", "nil", "none", "null")
)
"""Common texts for a missing value, in lower case."""


@dataclass(frozen=True)
class FilePath(os.PathLike[str]):
    """Path with options, for files whose extension does not show their format, or whose text has a special dialect.

    You can pass a `FilePath` wherever ddflow takes the path of a file with rows.

    Parameters
    ----------
    path : str or path
        A file, a folder or a pattern.
    format : str, optional
        The format of the files, as an extension: ``"parquet"``, ``"arrow"``, ``"arrows"``, ``"csv"``, ``"tsv"``,
        ``"jsonl"``, ``"json"``.  For compressed text without ``.gz`` or ``.zst`` in its name, write ``"csv.gz"`` or
        ``"csv.zst"``.  By default the extension of each file decides.
    delimiter : str, optional
        The delimiter of CSV, one ASCII character.  By default a comma, and a tab for ``.tsv``.
    null : str or sequence of str
        Texts that mean null in CSV, besides the empty field.
    encoding : str
        The encoding, by its name in Python.  A file that begins with the byte order mark of UTF-8 is read as UTF-8.
    decimal : str
        The decimal mark of numbers in CSV: ``"."`` or ``","``.  With ``","`` a text with a point is not a number,
        unless ``thousands`` is a point.
    dates : str or sequence of str
        The formats of dates and timestamps in CSV and in JSON strings, in the syntax of Python's ``strptime``:
        ``"%d.%m.%Y"``, ``"%d/%m/%Y %H:%M"``.  With several formats, the first one that matches a value applies.  The
        default is ISO 8601; write ``"iso"`` to use it next to other formats.  A format without a time is for dates,
        and means midnight in a timestamp column.  A format with a time is only for timestamps, and one with ``%z``
        only for timestamps with a time zone.
    thousands : str, optional
        The optional separator of digit groups in numbers of CSV: ``"."``, ``","``, ``"'"``, or ``" "``, which means
        every kind of space.  It must differ from ``decimal``.  A text with the separator in another position is not a
        number.
    rename : {str: str}, optional
        New names of columns by their names in the files, for every format: ``{"Order ID": "id"}``.  A file with the
        new name instead of the old one is accepted.  A file with neither name, or with both, is an error.

    Raises
    ------
    SpecError
        For an unknown format or encoding, and an invalid delimiter, ``decimal`` or ``thousands``.  For a date format
        without a day, month or year, or with an unknown code; ``%d %m %Y %y %b %B %H %I %p %M %S %f %z %%`` are
        known.  For a ``rename`` that gives two columns the same name.

    Examples
    --------
    >>> import ddflow as dd
    >>> FilePath("days/1.csv", delimiter=";", null="n/a").delimiter
    ';'
    >>> exported = FilePath("export.txt", format="csv")
    >>> orders = FilePath("orders/*.csv", rename={"Order ID": "id", "Amt": "amount"})
    >>> beds = FilePath("beds.csv", delimiter=";", decimal=",", dates=["%d.%m.%Y", "%d.%m.%Y %H:%M"])
    """

    path: str | os.PathLike[str]
    format: str | None = None
    delimiter: str | None = None
    null: str | Sequence[str] = ()
    encoding: str = "utf-8"
    decimal: str = "."
    dates: str | Sequence[str] = ()
    thousands: str | None = None
    rename: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        build_dialect(self)

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def build_dialect(given: Any) -> Dialect:
    """Return the dialect that a path declares; `PLAIN` for a path that is no `FilePath`.  Raises `SpecError`."""
    if not isinstance(given, FilePath):
        return PLAIN
    nulls, dates = ((each,) if isinstance(each, str) else tuple(each) for each in (given.null, given.dates))
    kind, rename = None if given.format is None else find_kind_by_extension(given.format), given.rename or {}
    if not isinstance(rename, Mapping) or not all(isinstance(each, str) for pair in rename.items() for each in pair):
        raise SpecError("dd.FilePath", f"rename={rename!r:.99}", 'pass new names by old names: {"Order ID": "id"}')
    how = Dialect(
        given.delimiter, nulls, given.encoding, given.decimal, dates, given.thousands, kind, (*rename.items(),)
    )
    return how.validate()


def suggest_delimiter(path: str, dialect: Dialect, between: str) -> ErrorText:
    """Suggest a `FilePath` with a given delimiter, for the remedy of an error.

    >>> suggest_delimiter("days/1.csv", PLAIN, ";")
    "is the delimiter ';'? pass dd.FilePath('days/1.csv', delimiter=';')"
    """
    return ErrorText(
        f"is the delimiter {between!r}? pass ", suggest_file_path_call(path, dialect._replace(delimiter=between))
    )


def suggest_file_path_call(path: str, dialect: Dialect, now: Dialect = PLAIN) -> FileFix:
    """Return the call of `FilePath` for a dialect.

    The call contains the options that differ from the defaults or from the dialect ``now``.

    >>> str(suggest_file_path_call("1.csv", Dialect(";", ("NA",), dates=("%d.%m.%Y", "iso"))))
    "dd.FilePath('1.csv', delimiter=';', null='NA', dates=['%d.%m.%Y', 'iso'])"
    """
    options = {
        name: _convert_dialect_value(value)
        for name, value, usual, was in zip(WRITING, dialect, PLAIN, now, strict=True)
        if value != usual or (value != was and value is not None)
    }
    return FileFix(path, options)


def _convert_dialect_value(value: Any) -> Any:
    """Convert a field of a dialect to the argument of `FilePath`."""
    if isinstance(value, FileKind):
        return find_extension(value)
    if isinstance(value, tuple) and any(isinstance(each, tuple) for each in value):
        return dict(value)
    several = list(value) if isinstance(value, tuple) and len(value) > 1 else None
    return several or (value[0] if isinstance(value, tuple) else value)


def suggest_null_option(path: str, dialect: Dialect, text: str) -> ErrorText:
    """Suggest a `FilePath` that reads a text as null, for the remedy of an error.

    >>> suggest_null_option("1.csv", Dialect(nulls=("NA",)), "-")
    "pass dd.FilePath('1.csv', null=['NA', '-']) if it means null"
    """
    return ErrorText(
        "pass ", suggest_file_path_call(path, dialect._replace(nulls=(*dialect.nulls, text))), " if it means null"
    )


def suggest_format_options(path: str, dialect: Dialect, text: str, kind: pa.DataType) -> ErrorText:
    """Suggest `FilePath` calls with a notation in which a text is a valid value of a type.

    >>> suggest_format_options("1.csv", PLAIN, "12,50", pa.float64()), suggest_format_options("1.csv", PLAIN,
    ...     "3.1.2024", pa.date32())
    ("dd.FilePath('1.csv', decimal=',')", "dd.FilePath('1.csv', dates='%d.%m.%Y')")
    >>> suggest_format_options("1.csv", PLAIN, "1.250,00", pa.float64())
    "dd.FilePath('1.csv', decimal=',', thousands='.')"
    >>> suggest_format_options("1.csv", Dialect(decimal=","), "0.552", pa.float64())
    "dd.FilePath('1.csv', decimal='.')"
    """
    return ErrorText.join_texts(
        " or ", [suggest_file_path_call(path, each, dialect) for each in find_fitting_dialects(dialect, [text], kind)]
    )


def find_fitting_dialects(dialect: Dialect, texts: Sequence[str], kind: pa.DataType) -> list[Dialect]:
    """Return the variants of a dialect that can parse all texts as values of a type.  O(texts)."""
    given = pa.array(texts)
    other, mark = (",", COMMA) if dialect.decimal == "." else (".", POINT)
    between = None if dialect.thousands == other else dialect.thousands
    found = [dialect._replace(decimal=other, thousands=between)] if any(map(mark.fullmatch, texts)) else []
    if is_number(kind):
        found += _list_thousands_dialects(dialect, given, kind)
    if pat.is_date(kind) or pat.is_timestamp(kind):
        found = [dialect._replace(dates=(*dialect.dates, form)) for form in guess_date_formats(texts)]
    return [each for each in found if is_parsable_as(given, kind, forms=each.value_formats)]


def _list_thousands_dialects(dialect: Dialect, texts: pa.Array, kind: pa.DataType) -> Iterator[Dialect]:
    """Yield variants of a dialect, each with a separator of digit groups that fits the texts.

    Change the decimal mark only if needed.
    """
    for between in GROUPS:
        each = dialect._replace(thousands=between[0])
        for way in (each, each._replace(decimal=",")):
            if (
                between[0] != way.decimal
                and pc.any(way.value_formats.mark_grouped_numbers(texts)).as_py()
                and is_parsable_as(texts, kind, forms=way.value_formats)
            ):
                yield way
                break


FULL: Final = "full"
_BEGINS: Final = re.compile(rf":(?={FULL}(?:$|:)|[a-z_-]+=)")
RENAME: Final = "rename"
_SEVERAL: Final = ("null", "dates")


def split_address_options(text: str, known: Sequence[str], kind: str = "") -> tuple[str, dict[str, list[str]]]:
    """Split an address into a file and its options.  Each option has a list of values.  Raises `SpecError`.  O(text).

    ``known``: the options that take a value.  ``kind``: a prefix of the address for error messages.

    >>> split_address_options("in/*.csv:full:dates=%H:%M %d.%m.%Y:delimiter=:", WRITING, "files:")
    ('in/*.csv', {'full': [''], 'dates': ['%H:%M %d.%m.%Y'], 'delimiter': [':']})
    >>> split_address_options("in/*.csv:full:3", WRITING, "files:")
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: files:in/*.csv:full:3: there is no option :full:3; write :full, or :delimiter=, :null=, ...
    """
    file, *options = _BEGINS.split(text)
    given: dict[str, list[str]] = {}
    for name, equals, value in (each.partition("=") for each in options):
        if name not in (known if equals else (FULL,)):
            remedy = f"write :{FULL}, or {', '.join(f':{each}=' for each in known)}"
            raise SpecError(f"{kind}{text}", f"there is no option :{name}", remedy)
        given.setdefault(name, []).append(value)
    return file, given


def collect_text_options(options: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the options that describe files, as keyword arguments of `FilePath`."""
    given: dict[str, Any] = {
        name: tuple(values) if name in _SEVERAL else values[-1] for name, values in options.items() if name in WRITING
    }
    if RENAME in given:  # the last "=" separates, so a new name cannot contain one
        given[RENAME] = {old: new for old, _, new in (each.rpartition("=") for each in options[RENAME])}
    return given

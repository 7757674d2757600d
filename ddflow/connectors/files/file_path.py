"""A path with options: what its files hold and how their text is written, in Python and on a command line.

Guarantees: `FilePath` and the options behind an address (`in/*.csv:full:delimiter=;`) mean the same. A wrong option is
an error that names it, raised before a file is opened.

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
"""What a `FilePath` says, by the names of its fields."""
NO_VALUE: Final = frozenset(
    ("-", "--", "–", "—", "?", ".", "..", "#n/a", "k.a.", "missing", "n.a.", "n/a", "na", "nan", "nil", "none", "null")
)
"""Texts by which files say that there is no value, in small letters."""


@dataclass(frozen=True)
class FilePath(os.PathLike[str]):
    """Files whose ending does not say what they hold, or whose text is not written as usual.

    Give it wherever a path of rows is taken.

    Parameters
    ----------
    path : str or path
        A file, a folder or a pattern.
    format : str, optional
        What its files hold, as the ending of a name would say: ``"parquet"``, ``"arrow"``, ``"arrows"``, ``"csv"``,
        ``"tsv"``, ``"jsonl"``, ``"json"``; text that a name does not show to be packed also as ``"csv.gz"`` or
        ``"csv.zst"``.  By default each file is what its own ending says.
    delimiter : str, optional
        What stands between values of CSV, one ASCII character.  By default a comma, in ``.tsv`` a tab.
    null : str or sequence of str
        What means null in CSV, beside the empty field.
    encoding : str
        As Python calls it.  A file that begins with the mark of UTF-8 is UTF-8.
    decimal : str
        What stands before the fraction of a number of CSV: ``"."`` or ``","``.  With ``","`` a point is in no number.
    dates : str or sequence of str
        The forms of dates and timestamps, as of Python's ``strptime``, in CSV and in the texts of JSON: ``"%d.%m.%Y"``,
        ``"%d/%m/%Y %H:%M"``.  Of several a value is in the first that it looks like.  By default ISO 8601, which beside
        others is ``"iso"``.  Forms without a time are of dates, and in a timestamp column of midnight; those with one
        are of timestamps alone, and with ``%z`` of those with a zone.
    thousands : str, optional
        What stands between groups of three digits of a number of CSV, where some do: ``"."``, ``","``, ``"'"``, or
        ``" "``, which is every kind of space.  Not the same as ``decimal``.  A number that has it elsewhere is none.
    rename : {str: str}, optional
        The names of columns in the files, of any kind, each with the name that it gets: ``{"Order ID": "id"}``.  A file
        that has the new name and not the old one is taken, too; one that has neither, or both, is an error.

    Raises
    ------
    SpecError
        For a format or an encoding that is not known, for a delimiter that is none, for a ``decimal`` that is neither
        a point nor a comma, for ``thousands`` that are none of those or the same, and for a form of dates that lacks
        its day, month or year, or has what is not known: ``%d %m %Y %y %b %B %H %I %p %M %S %f %z %%`` are.
        For a ``rename`` by which two columns get one name.

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
    """Return the dialect of the files of a path.  Raises `SpecError`."""
    if not isinstance(given, FilePath):
        return PLAIN
    nulls, dates = ((each,) if isinstance(each, str) else tuple(each) for each in (given.null, given.dates))
    kind, rename = None if given.format is None else find_kind_by_extension(given.format), given.rename or {}
    if not isinstance(rename, Mapping) or not all(isinstance(each, str) for pair in rename.items() for each in pair):
        raise SpecError("dd.FilePath", f"rename={rename!r:.99}", 'give names by names: {"Order ID": "id"}')
    how = Dialect(
        given.delimiter, nulls, given.encoding, given.decimal, dates, given.thousands, kind, (*rename.items(),)
    )
    return how.validate()


def suggest_delimiter(path: str, dialect: Dialect, between: str) -> ErrorText:
    """Suggest the call for a file with another delimiter, for the remedy of an error.

    >>> suggest_delimiter("days/1.csv", PLAIN, ";")
    "is the delimiter ';'? give dd.FilePath('days/1.csv', delimiter=';')"
    """
    return ErrorText(
        f"is the delimiter {between!r}? give ", suggest_file_path_call(path, dialect._replace(delimiter=between))
    )


def suggest_file_path_call(path: str, dialect: Dialect, now: Dialect = PLAIN) -> FileFix:
    """Show the call that reads a file in a dialect.  ``now``: the current dialect, so differences from it show.

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
    """Convert a value of a dialect to the argument of `FilePath` that means it."""
    if isinstance(value, FileKind):
        return find_extension(value)
    if isinstance(value, tuple) and any(isinstance(each, tuple) for each in value):
        return dict(value)
    several = list(value) if isinstance(value, tuple) and len(value) > 1 else None
    return several or (value[0] if isinstance(value, tuple) else value)


def suggest_null_option(path: str, dialect: Dialect, text: str) -> ErrorText:
    """Suggest the call that reads a text as null, for the remedy of an error.

    >>> suggest_null_option("1.csv", Dialect(nulls=("NA",)), "-")
    "give dd.FilePath('1.csv', null=['NA', '-']) if it means null"
    """
    return ErrorText(
        "give ", suggest_file_path_call(path, dialect._replace(nulls=(*dialect.nulls, text))), " if it means null"
    )


def suggest_format_options(path: str, dialect: Dialect, text: str, kind: pa.DataType) -> ErrorText:
    """Suggest the calls that read a text as a value of a type in another form.

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
    """Return the dialects that read some texts as values of a type in another form.  O(texts)."""
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
    """List the dialects with groups of three digits that fit; each changes the decimal only if it must."""
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
    """Split an address into a file and its options, each with all its values.  Raises `SpecError`.  O(text).

    ``known``: the options that have a value.  ``kind``: the text before the address in messages.

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
    """Return the options for the form of text, by the names of `FilePath`'s arguments."""
    given: dict[str, Any] = {
        name: tuple(values) if name in _SEVERAL else values[-1] for name, values in options.items() if name in WRITING
    }
    if RENAME in given:  # no new name has a "=" in it
        given[RENAME] = {old: new for old, _, new in (each.rpartition("=") for each in options[RENAME])}
    return given

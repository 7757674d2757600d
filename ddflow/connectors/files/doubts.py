"""Columns that are text because of few values, or of the form of all: numbers but for some, decimal commas, dates.

Invariant: only what was read to guess types is looked at, so it costs no reading; nothing changes by it. A column is
in doubt where more than half of its values are numbers, and where the first values of its first file are all numbers
with a decimal comma, or all dates in a form that is not ISO's, but for one word such as n/a. Codes such as 007 are no
reason: they are text on purpose.

>>> from ddflow.connectors.files.kinds import PLAIN
>>> from ddflow.connectors.files.read_text import Block, TextColumn
>>> head = Block({"n": TextColumn(pa.array(["1", "2.5", "n/a", None]))}, lambda row: f"row {row + 2}")
>>> doubt("n", [("a.csv", PLAIN, head)])
"'n' is text, because 'n/a' (a.csv, row 4) is no number; 2 of its first 3 values are: mend it, give \
dd.FilePath('a.csv', null='n/a') if it means null, or declare {'n': 'string'} if it is right"
>>> doubt("n", [("a.csv", PLAIN, Block({"n": TextColumn(pa.array(["1", "2", "007"]))}, str))])
"""

import re
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.files.file_path import as_null, others, written
from ddflow.connectors.files.guess import MOMENTS
from ddflow.connectors.files.kinds import Dialect
from ddflow.connectors.files.read_text import Block, TextFile
from ddflow.connectors.files.reading import File, brief
from ddflow.errors import Declare, Phrase

_NUMBER: Final = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"
FIRST: Final = 1_000
"""So many values of a column are looked at for their form."""
WORD: Final = 20
"""Characters of a text that may mean null, at most."""
_CODE: Final = re.compile(r"[+-]?\d+")
_DIGIT: Final = re.compile(r"\d")


def doubts(guessed: Iterable[str], schema: pa.Schema, readers: Iterable[File]) -> list[Phrase]:
    """Return the doubts about columns whose types were guessed.  O(bytes of their heads)."""
    names = [name for name in guessed if pa.types.is_string(schema.field(name).type)]
    files = [each for each in readers if isinstance(each, TextFile)] if names else []
    heads = [(each, head) for each in files if (head := each.looked_at()) is not None]
    named = [(each.place.name, each.dialect, head) for each, head in heads]
    return [found for name in names if (found := doubt(name, named) or formed(name, heads)) is not None]


def formed(name: str, heads: Iterable[tuple[TextFile, Block]]) -> Phrase | None:
    """Return why a column guessed as text may have numbers or dates of another form; else None.  O(`FIRST`)."""
    there = ((file, head, head.columns[name]) for file, head in heads if name in head.columns)
    first = next((each for each in there if each[2].texts.null_count < len(each[2].texts)), None)
    if first is None:
        return None
    file, head, column = first
    texts, dialect = column.texts.drop_null().slice(0, FIRST).to_pylist(), file.dialect
    if column.quoted is None:
        texts, dialect = _without_null(texts, dialect)
    for kind in (pa.float64(), *MOMENTS) if column.quoted is None else MOMENTS:
        if ways := others(dialect, texts, kind):
            shown = f"{brief(texts[0])} ({file.place.name}, {head.where(pc.index(column.texts, texts[0]).as_py())})"
            calls = Phrase.joined(" or ", [written(file.place.name, each, file.dialect) for each in ways])
            return Phrase(
                f"{name!r} is text, because of {shown}: give ", calls, ", or declare ", Declare({name: "string"})
            )
    return None


def _without_null(texts: list[str], dialect: Dialect) -> tuple[list[str], Dialect]:
    """Drop the one text without a digit that may mean null, if it is rare; return the dialect that reads it so."""
    words = {each for each in texts if len(each) <= WORD and _DIGIT.search(each) is None}
    some = [each for each in texts if each not in words]
    if len(words) != 1 or 2 * len(some) <= len(texts):
        return texts, dialect
    return some, dialect._replace(nulls=(*dialect.nulls, *words))


def doubt(name: str, heads: Iterable[tuple[str, Dialect, Block]]) -> Phrase | None:
    """Return why a column guessed as text may be another type; None if it is text.  O(bytes of the heads).

    ``heads``: the name, the dialect and the first rows of each file that has the column.
    """
    numbers, values, first, shown, nulls, null = 0, 0, "", "", True, Phrase()
    for file, dialect, head in heads:
        if (column := head.columns.get(name)) is None:
            continue
        fits = pc.match_substring_regex(column.texts, _NUMBER)
        if column.quoted is not None:
            nulls = False  # null= is of CSV
            fits = pc.and_(fits, pc.invert(pc.fill_null(column.quoted, False)))
        numbers += pc.sum(fits).as_py() or 0
        values += len(fits) - fits.null_count
        row = pc.index(fits, False).as_py()
        if row >= 0 and not first:
            first, shown = str(column.texts[row]), f"{brief(str(column.texts[row]))} ({file}, {head.where(row)})"
            null = as_null(file, dialect, first)
    if not first or 2 * numbers <= values or _CODE.fullmatch(first):
        return None
    null = null + ", " if nulls and len(first) <= WORD else Phrase()
    found = f"{name!r} is text, because {shown} is no number; {numbers:,} of its first {values:,} values are"
    return Phrase(f"{found}: mend it, ", null, "or declare ", Declare({name: "string"}), " if it is right")

"""Columns that are text because of few values, or of the form of all: numbers but for some, decimal commas, dates.

Invariant: only what was read to guess types is looked at, so it costs no reading; nothing changes by it. A column is
in doubt where more than half of its values are numbers, and where the first values of its first file are all numbers
with a decimal comma, or all dates in a form that is not ISO's. Codes such as 007 are no reason: they are text on
purpose.

>>> from ddflow.connectors.files.read_text import Block, TextColumn
>>> head = Block({"n": TextColumn(pa.array(["1", "2.5", "n/a", None]))}, lambda row: f"row {row + 2}")
>>> doubt("n", [("a.csv", head)])
"'n' is text, because 'n/a' (a.csv, row 4) is no number; 2 of its first 3 values are: mend it, give null='n/a' if it \
means null, or declare {'n': 'string'} if it is right"
>>> doubt("n", [("a.csv", Block({"n": TextColumn(pa.array(["1", "2", "007"]))}, str))])
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.type_text import as_declared
from ddflow.connectors.files.guess import MOMENTS
from ddflow.connectors.files.read_text import Block, TextFile
from ddflow.connectors.files.reading import File, brief
from ddflow.connectors.files.text_path import others, written

_NUMBER: Final = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"
FIRST: Final = 1_000
"""So many values of a column are looked at for their form."""
_CODE: Final = re.compile(r"[+-]?\d+")


def doubts(guessed: Iterable[str], schema: pa.Schema, readers: Sequence[File]) -> list[str]:
    """Those of the columns of files whose types were guessed.  O(bytes of their heads)."""
    names = [name for name in guessed if pa.types.is_string(schema.field(name).type)]
    texts = [(each.place.name, each.looked_at()) for each in readers if isinstance(each, TextFile)] if names else []
    heads = [(file, head) for file, head in texts if head is not None]
    found = ((doubt(name, heads) or formed(name, readers)) for name in names)
    return [each for each in found if each is not None]


def formed(name: str, readers: Iterable[File]) -> str | None:
    """Why a column that was guessed as text may have numbers or dates of another form.  O(`FIRST`)."""
    for reader in readers:
        head = reader.looked_at() if isinstance(reader, TextFile) else None
        column = None if head is None else head.columns.get(name)
        if (
            not isinstance(reader, TextFile)
            or head is None
            or column is None
            or column.texts.null_count == len(column.texts)
        ):
            continue
        texts = column.texts.drop_null().slice(0, FIRST).to_pylist()
        for kind in (pa.float64(), *MOMENTS) if column.quoted is None else MOMENTS:
            if ways := others(reader.dialect, texts, kind):
                row = pc.index(column.texts.is_valid(), True).as_py()
                shown = f"{brief(texts[0])} ({reader.place.name}, {head.where(row)})"
                calls = " or ".join(written(reader.place.name, each) for each in ways)
                return f"{name!r} is text, because of {shown}: give {calls}, or declare {as_declared(name, 'string')}"
        return None
    return None


def doubt(name: str, heads: Iterable[tuple[str, Block]]) -> str | None:
    """Why a column that was guessed as text may be none; None for one that is text.  O(bytes of the heads).

    ``heads``: of each file that has the column, what it is called and what was looked at.
    """
    numbers, values, first, shown, nulls = 0, 0, "", "", True
    for file, head in heads:
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
    if not first or 2 * numbers <= values or _CODE.fullmatch(first):
        return None
    null = f"give null={first!r} if it means null, " if nulls and len(first) <= 20 else ""
    found = f"{name!r} is text, because {shown} is no number; {numbers:,} of its first {values:,} values are"
    return f"{found}: mend it, {null}or declare {as_declared(name, 'string')} if it is right"

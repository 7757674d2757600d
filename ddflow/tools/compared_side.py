"""One side of a comparison, as it was given: where its rows stand, and what made one of its columns text.

Invariant: nothing is read again but the name of a file; a row has a place where a side is one file, which is called as
the file's reader calls it: from 1, a header too.

>>> schema = pa.schema({"n": pa.string()})
>>> sides = [Side(None, AS_USUAL, pa.table({"n": each})) for each in ([1.5], ["7", "7,50"])]
>>> as_text(schema, sides)[0].partition(", so ")[0]
"compare: 'n' is double before and string after (because of '7,50')"
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from ddflow.columns.schema import is_text, one_chunk
from ddflow.connectors.error_location import is_path
from ddflow.connectors.files import FileOptions
from ddflow.connectors.files.file_path import FilePath, dialect_of
from ddflow.connectors.files.kinds import CSV, TSV, Dialect
from ddflow.connectors.files.places import STDIN, listed
from ddflow.connectors.files.source import AS_USUAL
from ddflow.connectors.files.spelling import Misspelled, values
from ddflow.errors import DdflowError

__all__ = ["AS_USUAL", "Side", "as_text"]


class Side(NamedTuple):
    """One side of a comparison. ``given``: the argument; ``how``: the options of its files; ``rows``: as first read."""

    given: Any
    how: FileOptions
    rows: pa.Table

    @property
    def file(self) -> tuple[str, int] | None:
        """The only file, with its number for its first row; None if rows come otherwise. O(files)."""
        places = (
            listed([os.fspath(self.given)], self.dialect.kind) if is_path(self.given) and self.given != STDIN else []
        )
        return (places[0].name, 1 + (places[0].kind.name in (CSV, TSV))) if len(places) == 1 else None

    @property
    def dialect(self) -> Dialect:
        """How its files are written."""
        return dialect_of(self.given) if isinstance(self.given, FilePath) else self.how.dialect

    def placed(self, error: DdflowError) -> DdflowError:
        """Add the file to an error about its rows, with the file's row numbers."""
        if (file := self.file) is None:
            return error
        error.name_rows(lambda row: f"row {row + file[1]:,}", file[0])
        return error.change(asked=error.asked + f", {file[0]}")

    def odd(self, name: str, kind: pa.DataType) -> str:
        """Name the first text of a column that is no value of a type, and its place; "" if there is none. O(rows)."""
        try:
            values(one_chunk(self.rows.column(name)).cast(pa.string()), kind, forms=self.dialect.forms)
        except Misspelled as error:
            file, text = self.file, self.rows.column(name)[error.row].as_py()
            place = "" if file is None else f" in {file[0]}, row {error.row + file[1]:,}"
            return f" (because of {text!r:.100}{place})"
        except (pa.ArrowException, ValueError):
            return ""
        return ""


def as_text(schema: pa.Schema, sides: Sequence[Side]) -> tuple[str, ...]:
    """Make a note for each column that is text on only one side. ``schema``: of the comparison."""
    notes = list[str]()
    for field in schema:
        if not is_text(field.type) or any(field.name not in side.rows.column_names for side in sides):
            continue
        was, now = (side.rows.column(field.name).type for side in sides)
        if is_text(was) != is_text(now) and not {pa.null()} & {was, now}:
            odd = sides[is_text(now)].odd(field.name, was if is_text(now) else now)
            before, after = (odd, "") if is_text(was) else ("", odd)
            types = f"{was} before{before} and {now} after{after}"
            notes.append(f"compare: {field.name!r} is {types}, so its values are compared as text")
    return tuple(notes)

"""How wal2json of a server writes numbers: as text since 2.6; before that, NaN and the infinities are null.

Invariant: JSON has neither NaN nor the infinities, so numbers are asked for as text where a column that is read may be
one of them. A server that does not know the option is asked without it from then on. There a null of a column that may
not be null ends the run. Of others some rows are looked up by their keys: one that is NaN or infinite by then is null
here, of which is warned, once a column. One that was so for a while only is not found. A column that is read as decimal
or integer can hold none of these values: they are null in changes and in copies alike, with the same warning.

>>> numbers, of = Numbers(), SourceTable("public", "t", "t")
>>> numbers.options([looked := Looked([], [], ["v"], 9, {"id": 1, "v": 2}, 2)])
{'numeric-data-types-as-string': 'true'}
>>> numbers.as_text, cell = False, '{"name":"%s","type":"%s","value":%s}'
>>> cells = ",".join([cell % ("id", "integer", 7), cell % ("v", "double precision", "null")])
>>> numbers.look(pa.array([f'{{"action":"I","columns":[{cells}]}}']), of, looked)
>>> asked(numbers.nulls[of, "v"], ["id"])
(['integer'], [['7']])
"""

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.names import quoted
from ddflow.connectors.postgres import driver
from ddflow.connectors.postgres_catalog import NEWER, Looked, SourceTable, with_null
from ddflow.errors import UnreadableInput

OPTION: Final = "numeric-data-types-as-string"
"""Of wal2json: numbers as text."""
SAMPLE: Final = 1000
"""How many rows with a null are looked up of a column at a time."""


class Numbers:
    """``as_text``: whether they are asked for as text.  ``nulls``: by table and column, messages with a null there."""

    def __init__(self) -> None:
        self.as_text, self.nulls = True, dict[tuple[SourceTable, str], list[str]]()
        self._warned = set[tuple[SourceTable, str]]()

    def options(self, looked: Iterable[Looked]) -> dict[str, str]:
        """Return more options of wal2json for some tables."""
        return {OPTION: "true"} if self.as_text and any(each.lossy for each in looked) else {}

    def refused(self, error: Exception) -> bool:
        """Return whether a server refuses to write numbers as text, which it is not asked for again."""
        if not self.as_text or OPTION not in str(error):
            return False
        self.as_text = False
        return True

    def look(self, text: pa.Array, table: SourceTable, looked: Looked) -> None:
        """Keep messages of a table with a null that may be NaN or infinite, some of each column.  O(bytes) a column."""
        for name in () if self.as_text else looked.lossy:
            if name not in looked.certain and (table, name) not in self._warned:
                kept = self.nulls.setdefault((table, name), [])
                if len(kept) < SAMPLE:
                    kept += with_null(text, name).slice(0, SAMPLE - len(kept)).to_pylist()

    def held(self, text: pa.Array, table: SourceTable, looked: Looked, key: Sequence[str]) -> pa.Array:
        """Replace values that a column cannot hold with null in messages of a table.  O(bytes) a column.

        Raises `UnreadableInput` if the column is never null, also for a null that wal2json wrote.
        """
        for name in looked.certain:
            if len(lost := with_null(text, name, ',"optional":false')):
                found = f"wal2json wrote null for {name!r}, which is never null: it is NaN or infinite"
                raise _never_null(table, looked, name, f"{found}{_in_row(lost[0].as_py(), key)}")
        for name, kind in looked.exact.items():
            cell = f'({{"name" ?: ?{re.escape(json.dumps(name, ensure_ascii=False))}, ?'
            cell += '(?:"type":"[^"]*",)?"value" ?: ?)"(-?(?:NaN|Infinity))"'
            lost = text.filter(pc.match_substring_regex(text, cell))
            if not len(lost):
                continue
            text = pc.replace_substring_regex(text, cell, r"\1null")
            # What a row was before its change was taken, or refused, then.
            lost = pc.replace_substring_regex(lost, r',"identity":\[.*$', "")
            lost = lost.filter(pc.match_substring_regex(lost, cell))
            if len(lost):
                message = lost[0].as_py()
                row = _in_row(message, key)
                (_, value), *_ = re.findall(cell, message)
                if name in looked.certain:
                    found = f"{name!r} is {value}{row}, which {kind} cannot hold, and it is never null"
                    raise _never_null(table, looked, name, found)
                self._warn(table, looked, name, f"{value}{row}")
        return text

    def _warn(self, table: SourceTable, looked: Looked, name: str, found: str) -> None:
        """Warn of a value that is null here, once a column."""
        if (table, name) not in self._warned:
            self._warned.add((table, name))
            kind = looked.exact.get(name)
            why = f"as wal2json wrote it: {NEWER}" if kind is None else f"because {kind} cannot hold it"
            why += "" if kind is None else "; to keep it, begin a new state that declares the column as str"
            warnings.warn(f"{table.full}: {name!r} is {found}, and null here, {why}", stacklevel=2)

    def warn(self, connection: Any, looked: Mapping[SourceTable, Looked], keys: Mapping[str, Sequence[str]]) -> None:
        """Warn of columns with NaN or an infinity in a row that was kept.  ``keys``: by input."""
        for (table, name), texts in self.nulls.items():
            key = keys.get(table.input, ())
            kinds, cells = asked(texts, key)
            if not kinds:
                continue
            own = [f"t.{quoted(each)}" for each in key]
            same = " and ".join(f"{one} = k.c{n}::{kind}" for n, (one, kind) in enumerate(zip(own, kinds, strict=True)))
            given = (
                f"unnest({', '.join(['%s::text[]'] * len(key))}) as k({', '.join(f'c{n}' for n in range(len(key)))})"
            )
            lost = f"t.{quoted(name)}::text in ('NaN', 'Infinity', '-Infinity')"
            query = f"select {', '.join(own)}, t.{quoted(name)}::text from only {table.quoted} t join {given} on {same}"
            with suppress(driver().Error):  # a type that is not found by its name alone, a right that is lacking
                found = connection.execute(f"{query} where {lost} limit 1", cells).fetchone()
                if found is not None:
                    row = dict(zip(key, found, strict=False))
                    self._warn(table, looked[table], name, f"{found[-1]} in the row {row}")
        self.nulls.clear()


def asked(messages: Sequence[str], key: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the types and values of a key in messages, by column; nothing if no message has it.  O(bytes)."""
    rows = [{each["name"]: each for each in json.loads(text)["columns"]} for text in messages]
    rows = [row for row in rows if key and all(name in row for name in key)]
    kinds = [str(rows[0][name]["type"]) for name in key] if rows else []
    return kinds, [[str(row[name]["value"]) for row in rows] for name in key] if rows else []


def _in_row(message: str, key: Sequence[str]) -> str:
    """Describe the row of a message by its key; "" if the message lacks it."""
    cells = {each["name"]: each["value"] for each in json.loads(message)["columns"]}
    row = {name: cells[name] for name in key if name in cells}
    return f" in the row {row}" if row and len(row) == len(key) else ""


def _never_null(table: SourceTable, looked: Looked, name: str, found: str) -> UnreadableInput:
    """Build the error for a value that would be null in a column declared not null."""
    null = (
        f"to have null for it: alter table {table.quoted} alter {quoted(name)} drop not null, until a run has read it"
    )
    text = f"add column ... text generated always as ({quoted(name)}::text) stored"
    kept = f"to keep it: alter table {table.quoted} {text}, and a new state that declares that column"
    remedy = f"{null}; or {kept}" if name in looked.exact else f"{NEWER}; or {null}; or {kept}"
    return UnreadableInput(f"read the table {table.full} for {table.input!r}", found, remedy)

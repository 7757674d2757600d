"""How wal2json of a server writes numbers: as text since 2.6; before that, NaN and the infinities are null.

Invariant: JSON has neither NaN nor the infinities, so numbers are asked for as text where a column that is read may be
one of them. A server that does not know the option is asked without it from then on. There a null of a column that may
not be null ends the run (`postgres_catalog.whole`). Of others some rows are looked up by their keys: one that is NaN or
infinite by then is null here, of which is warned, once a column. One that was so for a while only is not found.

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
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from ddflow.columns.names import quoted
from ddflow.connectors.postgres import driver
from ddflow.connectors.postgres_catalog import NEWER, Looked, SourceTable, with_null

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
        """What wal2json is asked for besides, for some tables."""
        return {OPTION: "true"} if self.as_text and any(each.lossy for each in looked) else {}

    def refused(self, error: Exception) -> bool:
        """Whether a server refuses to write numbers as text, which it is not asked for again."""
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

    def warn(self, connection: Any, keys: Mapping[str, Sequence[str]]) -> None:
        """Warn of columns with a row that is NaN or infinite, among those that were kept.  ``keys``: by input."""
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
                    self._warned.add((table, name))
                    row, value = dict(zip(key, found, strict=False)), found[-1]
                    text = f"{table.full}: {name!r} is {value} in the row {row}, and null here, as wal2json wrote it"
                    warnings.warn(f"{text}: {NEWER}", stacklevel=2)
        self.nulls.clear()


def asked(messages: Sequence[str], key: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The types and the values of a key in messages, by column; nothing where none has it.  O(bytes)."""
    rows = [{each["name"]: each for each in json.loads(text)["columns"]} for text in messages]
    rows = [row for row in rows if key and all(name in row for name in key)]
    kinds = [str(rows[0][name]["type"]) for name in key] if rows else []
    return kinds, [[str(row[name]["value"]) for row in rows] for name in key] if rows else []

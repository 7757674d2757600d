"""JSON text into columns, by DuckDB's parser: the one place that calls it.

Invariant: a scalar comes out as the text that stands in the JSON (a string without its quotes and escapes), so no digit
of an integer is lost; a fraction comes out as the nearest double. Nothing is null but null, what is missing, and what
lies within something of another shape. Whatever is no JSON is marked, and the rows beside it are read all the same. One
core; some 1.2 us a message of 600 bytes.

>>> read, wrong = objects(pa.array(['{"id": 12345678901234567890, "of": {"v": "x"}}', "{", None]), {"of": {"v": TEXT}})
>>> read.to_pylist(), wrong.tolist()
([{'of': {'v': 'x'}}, None, None], [False, True, False])
"""

import json
import os
import threading
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.schema import one_chunk
from ddflow.errors import MissingExtra

TEXT: Final = "VARCHAR"
"""The shape of a scalar: its text."""
QUOTED: Final = "JSON"
"""The shape of what tells strings, in their quotes, from numbers."""
Bools = np.ndarray[Any, np.dtype[np.bool_]]
_LOCAL = threading.local()


def objects(text: pa.Array, shape: Any) -> tuple[pa.Array, Bools]:
    """What JSON texts hold of a ``shape``, and which of them are no JSON.  O(bytes).

    ``shape``: `TEXT`, a dict of shapes by name, or a list of one shape.
    """
    return parsed(text, f"from_json(v, {quoted(json.dumps(shape))})")


def parsed(text: pa.Array, sql: str) -> tuple[pa.Array, Bools]:
    """What an expression over ``v`` makes of JSON texts, and which of them are no JSON.  O(bytes)."""
    duckdb = reader()
    try:
        return computed(text, sql), np.zeros(len(text), np.bool_)
    except duckdb.InvalidInputException:
        valid = np.asarray(computed(text, "coalesce(json_valid(v), true)"))
    return computed(text, f"case when json_valid(v) then {sql} end"), ~valid


def computed(column: pa.Array, sql: str) -> pa.Array:
    """What an expression over ``v`` makes of a column.  O(bytes).  Raises what DuckDB raises."""
    made = _connection().from_arrow(pa.table({"v": column})).project(f"{sql} as v").to_arrow_table()
    return one_chunk(made.column(0))


def base64_bytes(text: pa.Array) -> pa.Array:
    """The bytes of base64 texts.  O(bytes).  Raises `ValueError` where one is none."""
    duckdb = reader()
    try:
        return computed(text, "from_base64(v)")
    except duckdb.Error as error:
        raise ValueError(str(error)) from None


def quoted(text: str) -> str:
    """A text of SQL."""
    return "'" + text.replace("'", "''") + "'"


def reader() -> Any:
    """DuckDB, which reads messages.  Raises `MissingExtra`."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra("read messages", str(error), "pip install 'ddflow[duckdb]'") from None
    return duckdb


def _connection() -> Any:
    """This thread's database in memory; another one after a fork."""
    if getattr(_LOCAL, "process", None) != os.getpid():
        _LOCAL.connection = reader().connect(":memory:", config={"threads": 1})
        _LOCAL.process = os.getpid()
    return _LOCAL.connection

"""Parse JSON text to columns with DuckDB's parser.  No other module for formats calls DuckDB.

Scalars become their JSON text, without the quotes and escapes of strings, so integers keep all digits. A value is null
only if the JSON has null or no value, or if the enclosing object or list does not have the requested shape. A row with
invalid JSON is marked, and does not affect other rows. Parsing uses one core.

DuckDB reads a fraction as a double, which may lose digits. If a column must keep all digits (`WORDS`, `QUOTED`),
`parse_objects` parses a message again if fractions in the message may have lost digits. Before it parses the message
again, the function converts the fractions to marked strings; afterwards it removes the marks.
"""

import json
import os
import secrets
import threading
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import to_array
from ddflow.errors import import_extra

TEXT: Final = "VARCHAR"
"""Shape of a scalar as text for a later cast; a fraction becomes the text of the nearest double."""
WORDS: Final = "STRING"
"""Shape of a scalar as text with all digits.  DuckDB treats this shape like `TEXT`."""
QUOTED: Final = "JSON"
"""Shape of a scalar as JSON: strings keep their quotes, and numbers keep all digits."""
LOOSE: Final = "json"
"""Shape like `QUOTED`, but fractions keep only the digits of a double."""
Bools = np.ndarray[Any, np.dtype[np.bool_]]
_LOCAL = threading.local()
_MARK: Final = f"n{secrets.token_hex(10)}"
"""Prefix of strings that were numbers.  The prefix is random, so no message contains it."""
_NEXT: Final = r'((?:[^"0-9]|"(?:[^"\\]|\\.)*"|[0-9]+)*?)(-?[0-9]+[.eE][0-9.eE+-]*|-0|$)'
"""Pattern with two groups.

Group 1 is the text before the next fraction; group 2 is this fraction, or "" at the end of the text.
"""
_MARKED: Final = f'"?{_MARK}([0-9.eE+-]+)"?'
_CHANGED: Final = {
    QUOTED: r"-?[0-9.]*([0-9.]{17}|[0-9]{16}[eE]|[eE][+-]?[0-9]{3})",
    WORDS: r"(-?[0-9]+[.eE]|-0)",
}
"""For each shape, a pattern for the start of a number that may change if the number becomes a double.

The pattern for `QUOTED` finds numbers whose value may change: numbers with more than 15 digits, or near the limits of a
double. The pattern for `WORDS` finds numbers whose text may change.
"""
_WORD: Final = r"^-?[0-9]+[.eE]|^0$|^[\[{].*[0-9]"
"""Pattern for texts from DuckDB that are fractions, 0 (which may have been -0), or lists and objects with digits."""


def parse_objects(text: pa.Array, shape: Any, exact: Any = False) -> tuple[pa.Array, Bools]:
    """Parse JSON texts to a ``shape``, and mark the invalid texts.  O(bytes).

    ``shape``: `TEXT`, `WORDS`, `QUOTED`, a dict of shapes by name, or a list with one shape.  ``exact``: marks texts
    whose numbers keep all digits, whatever the shape.

    >>> texts = pa.array(['{"id": 12345678901234567890, "of": {"v": "x"}}', "{", None])
    >>> read, wrong = parse_objects(texts, {"of": {"v": TEXT}})
    >>> read.to_pylist(), wrong.tolist()
    ([{'of': {'v': 'x'}}, None, None], [False, True, False])
    >>> text = pa.array(['{"a": 1.10, "b": [1.10], "c": 1.10}'])
    >>> parse_objects(text, {"a": TEXT, "b": [WORDS], "c": QUOTED})[0].to_pylist()
    [{'a': '1.10', 'b': ['1.10'], 'c': '1.10'}]
    """
    sql = f"from_json(v, {quote_sql_literal(json.dumps(shape))})"
    made, wrong = evaluate_sql_on_json(text, sql)
    rows = np.flatnonzero((_mark_rounded_texts(text, made, shape) | exact) & ~wrong)
    if not rows.size:
        return made, wrong
    return replace_cells(made, rows, evaluate_sql_keeping_digits(text.take(pa.array(rows)), sql)), wrong


def replace_cells(cells: pa.Array, rows: Any, found: pa.Array) -> pa.Array:
    """Replace the cells at some rows of a column of any type.  O(cells)."""
    which = np.arange(len(cells))
    which[rows] = len(cells) + np.arange(len(found))
    return pa.concat_arrays([cells, found]).take(pa.array(which))


def evaluate_sql_keeping_digits(text: pa.Array, sql: str) -> pa.Array:
    """Evaluate a SQL expression on valid JSON texts, and keep all digits of numbers.

    In the expression, ``v`` is a text. O(bytes), but slower than `evaluate_sql_on_json`.
    """
    return _unquote_fractions(evaluate_sql(_quote_fractions(text), sql))


def _quote_fractions(text: pa.Array) -> pa.Array:
    """Convert fractions and -0 in JSON texts to strings with the prefix `_MARK`.  O(bytes)."""
    marked = pc.replace_substring_regex(text.cast(pa.large_string()), _NEXT, rf'\1"{_MARK}\2"')
    return pc.replace_substring(marked, f'"{_MARK}"', "")  # undo the empty match at the end of each text


def _unquote_fractions(cells: pa.Array) -> pa.Array:
    """Remove the prefixes that `_quote_fractions` added from cells of any shape."""
    kind = cells.type
    if pat.is_struct(kind):
        return pa.StructArray.from_arrays(
            [*map(_unquote_fractions, cells.flatten())], fields=list(kind), mask=cells.is_null()
        )
    if pat.is_list(kind):
        return pa.ListArray.from_arrays(
            cells.offsets, _unquote_fractions(cells.values), type=kind, mask=cells.is_null()
        )
    if not pat.is_string(kind) or not pc.any(pc.match_substring(cells, _MARK)).as_py():
        return cells
    return pc.replace_substring_regex(cells, _MARKED, r"\1")


def _mark_rounded_texts(text: pa.Array, made: pa.Array, shape: Any) -> Bools:
    """Mark the texts with a number that may have lost required digits.  O(cells)."""
    out: Bools = np.zeros(len(text), np.bool_)
    for kind in (QUOTED, WORDS):
        rows = np.flatnonzero(mark_maybe_lossy_cells(made, shape, kind) & ~out)
        if rows.size:
            out[rows] = mark_lossy_numbers(text.take(pa.array(rows)), kind, _find_members_of_shape(shape, kind))
    return out


def mark_lossy_numbers(
    text: pa.Array, kind: str, names: Collection[str] = (), between: str = r"\s*:\s*", odd: str = ""
) -> Bools:
    """Mark the JSON texts with a number that may lose digits in columns of the shape ``kind`` (`QUOTED` or `WORDS`).

    ``names``: the members with columns of this shape, if known.
    ``between``: a pattern for the text between a name and its number.
    ``odd``: a pattern for messages in which another text is between a name and its number.

    O(bytes).
    """
    out = np.asarray(pc.match_substring_regex(text, rf"(^|[\[,:])\s*{_CHANGED[kind]}"))
    if names and all(each.isascii() and each.isidentifier() for each in names):
        rows = np.flatnonzero(out)
        # A JSON text may contain the name with escapes.
        named = rf'"({"|".join(names)})"{between}([\[{{]|{_CHANGED[kind]})|\\u{odd and f"|{odd}"}'
        out = np.zeros(len(text), np.bool_)
        out[rows] = np.asarray(pc.match_substring_regex(text.take(pa.array(rows)), named))
    return out


def _find_members_of_shape(shape: Any, kind: str, name: str = "") -> set[str]:
    """Return the names of members with the shape ``kind``, at any depth.

    ``name``: the name of the member with this shape.
    """
    if isinstance(shape, list):
        return _find_members_of_shape(shape[0], kind, name)
    if isinstance(shape, dict):
        return {found for each, inner in shape.items() for found in _find_members_of_shape(inner, kind, each)}
    return {name} if name and shape == kind else set()


def mark_maybe_lossy_cells(cells: pa.Array, shape: Any, kind: str) -> Bools:
    """Mark the cells that may be or contain fractions, in columns of the shape ``kind``.  O(cells)."""
    out: Bools = np.zeros(len(cells), np.bool_)
    if isinstance(shape, dict):
        for name, inner in shape.items() if pat.is_struct(cells.type) else ():
            if inner != TEXT:
                out |= mark_maybe_lossy_cells(pc.struct_field(cells, name), inner, kind)
    elif isinstance(shape, list):
        if pat.is_list(cells.type) and (some := mark_maybe_lossy_cells(cells.flatten(), shape[0], kind)).any():
            out[np.asarray(pc.list_parent_indices(cells))[some]] = True
    elif shape == kind and cells.null_count < len(cells):
        _, ends, letters = cells.buffers()
        if letters is None or not letters.size:
            return out
        starts = np.frombuffer(ends, np.int32)[cells.offset : cells.offset + len(cells)]
        first = np.frombuffer(letters, np.uint8)[np.minimum(starts, letters.size - 1)]
        if (rows := np.flatnonzero(_BEGINS[first] & np.asarray(cells.is_valid()))).size:
            pattern = "[.eE]" if kind == QUOTED else _WORD
            out[rows] = np.asarray(pc.match_substring_regex(cells.take(pa.array(rows)), pattern))
    return out


_BEGINS: Final = np.isin(np.arange(256), np.frombuffer(b"-0123456789[{", np.uint8))
"""For each byte value, whether a number, a list or an object can begin with this byte."""


def evaluate_sql_on_json(text: pa.Array, sql: str) -> tuple[pa.Array, Bools]:
    """Evaluate a SQL expression on JSON texts, and mark the invalid texts.

    In the expression, ``v`` is a text.  O(bytes).
    """
    duckdb = import_duckdb()
    try:
        return evaluate_sql(text, sql), np.zeros(len(text), np.bool_)
    except duckdb.InvalidInputException:
        valid = np.asarray(evaluate_sql(text, "coalesce(json_valid(v), true)"))
    return evaluate_sql(text, f"case when json_valid(v) then {sql} end"), ~valid


def evaluate_sql(column: pa.Array, sql: str) -> pa.Array:
    """Evaluate a SQL expression on a column.

    In the expression, ``v`` is a value of the column.  O(bytes).  Raises DuckDB's errors.
    """
    made = _get_thread_database().from_arrow(pa.table({"v": column})).project(f"{sql} as v").to_arrow_table()
    return to_array(made.column(0))


def decode_base64(text: pa.Array) -> pa.Array:
    """Decode base64 texts.  O(bytes).  Raises `ValueError` for an invalid text."""
    duckdb = import_duckdb()
    try:
        return evaluate_sql(text, "from_base64(v)")
    except duckdb.Error as error:
        raise ValueError(str(error)) from None


def quote_sql_literal(text: str) -> str:
    """Quote a text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def import_duckdb() -> Any:
    """Import DuckDB, which parses messages.  Raises `MissingExtra`."""
    return import_extra("read messages", "duckdb", "duckdb")


def _get_thread_database() -> Any:
    """Return the in-memory database of this thread; create a new one after a fork."""
    if getattr(_LOCAL, "process", None) != os.getpid():
        _LOCAL.connection = import_duckdb().connect(":memory:", config={"threads": 1})
        _LOCAL.process = os.getpid()
    return _LOCAL.connection

"""Rows as JSON text, a whole column at a time: lines of files, and messages.

Invariant: each line is one JSON object whose values read back, as the columns' own types, are the rows; keys come in
column order, nulls are written. Not a number, and the infinities, are written bare as ``NaN`` and ``Infinity``, as
Python and Arrow write and read them; a float without a fraction gets ``.0``, so that it stays one. No value passes
through a Python object, but bytes on their way to base64; lists are joined by Arrow over text of their elements.

>>> table = pa.table({"id": [1, 2], "tags": [["a", 'b"'], None], "p": [{"x": 1.0}, {"x": None}]})
>>> print(bytes(json_lines(table.to_batches()[0])).decode(), end="")
{"id":1,"tags":["a","b\\""],"p":{"x":1.0}}
{"id":2,"tags":null,"p":{"x":null}}
"""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import is_bytes, is_text, normal_type
from ddflow.connectors.files.wire import as_list, ends_of, is_listed, plain

_ESCAPES: Final = [("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")]
_OTHERS: Final = [(chr(i), f"\\u{i:04x}") for i in range(32) if chr(i) not in "\n\r\t"]
_BEYOND: Final = [("^inf$", "Infinity"), ("^-inf$", "-Infinity"), ("^-?nan$", "NaN")]


def json_lines(batch: pa.RecordBatch) -> Any:
    """Format the rows as JSON lines: a buffer of UTF-8 that ends with a newline.  O(bytes).

    The text of a batch must stay below 2 GiB; `Output` cuts tables to batches of 64 Ki rows.
    """
    if not batch.num_columns:
        return b"{}\n" * batch.num_rows
    lines = pc.binary_join_element_wise(json_objects(batch), "\n", "")
    ends, text = lines.buffers()[1:]
    return text[: memoryview(ends).cast("i")[len(lines)]] if text is not None else b""


def json_objects(batch: pa.RecordBatch, strict: bool = False) -> pa.Array:
    """Format each row as a JSON object.  O(bytes).

    ``strict``: follow other readers of JSON: a UUID has hyphens, and NaN or infinity is a string.

    >>> json_objects(pa.record_batch({"x": [1.5, float("nan")]}), strict=True).to_pylist()
    ['{"x":1.5}', '{"x":"NaN"}']
    """
    return _members(batch.schema.names, batch.columns, batch.num_rows, strict)


def _values(column: pa.Array, strict: bool) -> pa.Array:
    """Format each value of a column as JSON text, nulls included."""
    if strict and column.type == pa.uuid():
        column = pa.array([None if each is None else str(each) for each in column.to_pylist()], pa.string())
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if column.type != normal_type(column.type):
        column = column.cast(normal_type(column.type))
    kind = column.type
    if pat.is_null(kind):
        text = pa.nulls(len(column), pa.string())
    elif pat.is_struct(kind):
        text = _object(column, strict)
    elif is_listed(kind):
        text = _list(column, strict)
    elif is_text(kind) or is_bytes(kind) or pat.is_temporal(kind) or pat.is_decimal(kind):
        text = _string(column)
    elif pat.is_floating(kind):
        text = _float(column.cast(pa.float32()) if pat.is_float16(kind) else column, strict)
    else:
        text = column.cast(pa.string())
    return text.fill_null("null")


def _float(column: pa.Array, strict: bool) -> pa.Array:
    text = column.cast(pa.string())
    if not pc.all(pc.is_finite(column)).as_py():
        for pattern, written in _BEYOND:
            text = pc.replace_substring_regex(text, pattern, f'"{written}"' if strict else written)
    return pc.replace_substring_regex(text, r"^(-?\d+)$", r"\1.0")


def _string(column: pa.Array) -> pa.Array:
    """Quote and escape text; a duration becomes a bare count of its unit."""
    if pat.is_duration(column.type):
        return column.cast(pa.int64()).cast(pa.string())
    escape = is_text(column.type)
    text = plain(column).cast(pa.string())
    if escape:
        for letter, written in _ESCAPES:
            text = pc.replace_substring(text, letter, written)
        if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
            for letter, written in _OTHERS:
                text = pc.replace_substring(text, letter, written)
    return pc.binary_join_element_wise('"', text, '"', "")


def _object(column: pa.Array, strict: bool) -> pa.Array:
    text = _members([field.name for field in column.type], column.flatten(), len(column), strict)
    return pc.if_else(column.is_null(), pa.scalar(None, pa.string()), text) if column.null_count else text


def _members(names: list[str], columns: list[pa.Array], rows: int, strict: bool) -> pa.Array:
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        parts += [("," if parts else "{") + json.dumps(name, ensure_ascii=False) + ":", _values(column, strict)]
    return pc.binary_join_element_wise(*parts, "}", "") if parts else pa.array(["{}"] * rows, pa.string())


def _list(column: pa.Array, strict: bool) -> pa.Array:
    column = as_list(column)
    null = column.is_null() if column.null_count else None
    texts = pa.ListArray.from_arrays(
        pa.array(ends_of(column), pa.int32()), _values(column.flatten(), strict), mask=null
    )
    return pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", "")

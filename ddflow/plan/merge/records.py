"""Records: columns of numbers, booleans and times as a numpy array of records, and back, for functions on scalars.

Invariant: a record has a field for each column of a word type, times as integers, and beside it ``<column>_null``;
there and back is the identity.  Under a null stands 0, whatever Arrow's buffer has there, so a function that does not
look at the flag sees nobody else's value.  Columns of other types have no field: what becomes of them is the caller's.

>>> schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("s"), "name": pa.string()})
>>> rows = pa.record_batch({"id": [7, None], "at": [1, 2], "name": ["a", "b"]}).cast(schema)
>>> made = to_records(rows, kind_of(schema, "here"))
>>> made.dtype.names, made["id_null"].tolist()
(('id', 'id_null', 'at', 'at_null'), [False, True])
>>> column_of(made, schema.field("id")).to_pylist()
[7, None]
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import flags, validity, view
from ddflow.columns.schema import arrays, is_word
from ddflow.errors import SpecError
from ddflow.plan.merge.absent import Absent
from ddflow.plan.merge.rounds import named

NULL = "_null"
"""Behind a column's name: the field that says whether it is null."""
Records = np.ndarray[Any, np.dtype[Any]]


def fits(kind: pa.DataType) -> bool:
    """Whether values of a type are fields of records: words, but for float16."""
    return is_word(kind) and not pat.is_float16(kind)


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    if pat.is_boolean(kind):
        return np.dtype(np.bool_)
    letter = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def kind_of(schema: pa.Schema, what: str) -> np.dtype[Any]:
    """Build the record type of some columns.  O(columns).  Raises `SpecError` if a column has the name of a flag."""
    fields: list[tuple[str, np.dtype[Any]]] = []
    for field in schema:
        if fits(field.type):
            fields += [(field.name, _dtype(field.type)), (field.name + NULL, np.dtype(np.bool_))]
    names = [name for name, _ in fields]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(
                what,
                f"the columns {name!r} and {name.removesuffix(NULL)!r} would have one field",
                "rename one of them: behind a column's name, _null says whether it is null",
            )
    return np.dtype(fields)


def numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the values of a word type as a numpy array, times as integers; a value under a null is unspecified."""
    if pat.is_boolean(column.type):
        return flags(column).view(np.bool_)
    return view(column, _dtype(column.type))


def to_records(rows: pa.RecordBatch | pa.Table, kind: np.dtype[Any]) -> Records:
    """Convert rows to records.  O(rows) a column."""
    out = np.zeros(rows.num_rows, kind)
    for name in (kind.names or ())[::2]:
        (column,) = arrays(rows, [name])
        out[name] = numbers(column)
        present = validity(column)
        if present.size:
            out[name + NULL] = present == 0
            out[name][present == 0] = 0
    return out


def column_of(made: Records, field: pa.Field) -> pa.Array:
    """Convert one column of records back.  O(records)."""
    values, null = np.ascontiguousarray(made[field.name]), made[field.name + NULL]
    out = pa.array(values, mask=null if null.any() else None)
    return out if out.type == field.type else out.view(field.type)


def fields_of(kind: np.dtype[Any], fixed: list[str], required: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Describe record fields for `kernels.user_functions`.  ``fixed``: may not change; ``required``: may not be null."""
    out = []
    for name in (kind.names or ())[::2]:
        where: Any = kind.fields
        at = {each: where[each] for each in (name, name + NULL)}
        size = at[name][0].itemsize
        rules = name in fixed, name in required, size if at[name][0].kind == "f" else 0
        out.append((at[name][1], size, at[name + NULL][1], *rules))
    return np.array(out, np.int64).reshape(-1, 6)


def check_function(function: Callable[..., Any], asked: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a function of scalars that numba cannot compile, or that names a missing field.

    ``arguments``: by name, each in the loops' form.  Raises `SpecError`.  Takes the time of a compilation.
    """
    from ddflow.kernels.user_functions import find_record_fault

    error = None if isinstance(function, Absent) else find_record_fault(function, *arguments.values())
    if error is None:
        return
    found = f"{named(function)} does not compile: {' '.join(str(error).split())[:500]}"
    if isinstance(error, KeyError):
        found = f"{named(function)} names the field {error.args[0]!r}, which there is not"
    fields = "; ".join(f"{name} has {list(each.dtype.names)}" for name, each in arguments.items())
    raise SpecError(asked, found, f"mend f({', '.join(arguments)}), where {fields}") from None

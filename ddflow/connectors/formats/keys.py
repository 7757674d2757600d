"""The keys of messages: an object of the key's columns, or the one value of a key of one column.

Invariant: a column that the key does not say is not guessed: it is null, and whoever needs it says so.

>>> from ddflow.connectors.formats.base import Target
>>> messages = Messages(pa.table({"value": ["", ""], "key": ['{"id": 7}', "8"]}), "'t'", 0)
>>> target = Target("'t'", pa.schema({"id": pa.int64()}), ("id",), (), False, pa.schema([]))
>>> key_cells(messages, np.arange(2), target, CellForm())["id"].to_pylist()
[7, 8]
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.formats.base import Target
from ddflow.connectors.formats.cells import CellForm, cells_as, shape_of
from ddflow.connectors.formats.envelope import opened, typed
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.parse import WORDS, objects, put_cells


def key_cells(messages: Messages, rows: Any, target: Target, how: CellForm) -> dict[str, pa.Array]:
    """Return the key columns in the keys of some messages; nothing if messages have no key.  O(bytes)."""
    if messages.key is None or pat.is_null(messages.key.type):
        return {}
    keys = messages.key.take(pa.array(rows))
    exact = np.broadcast_to(messages.exact, messages.rows)[rows]
    inside = opened(keys, {name: shape_of(target.columns.field(name).type) for name in target.key}, exact)
    out = {name: typed(inside, (), name, target.columns.field(name).type, how)[0] for name in target.key}
    if len(target.key) == 1 and not pat.is_struct(keys.type):
        (name,) = target.key
        left = np.flatnonzero(np.asarray(out[name].is_null()) & np.asarray(keys.is_valid()))
        if left.size:
            out[name] = _single(out[name], keys, left, target.columns.field(name).type, how)
    return out


def _single(made: pa.Array, keys: pa.Array, left: Any, kind: pa.DataType, how: CellForm) -> pa.Array:
    """Read keys that are no objects: the value itself, in JSON, or as text."""
    some = keys.take(pa.array(left))
    objects_here = pc.starts_with(pc.utf8_trim_whitespace(some), "{")
    body, _ = objects(some, {"payload": WORDS})
    wrapped = pc.struct_field(body, "payload")
    plain = pc.if_else(objects_here, pa.scalar(None, some.type), some)
    value, _ = objects(plain, WORDS)
    cells = pc.coalesce(wrapped, value, plain)
    found, _ = cells_as(cells, kind, how)
    return put_cells(made, left, found)

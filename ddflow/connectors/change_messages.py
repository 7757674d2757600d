"""Changes as messages in Debezium's envelope: what the mode ``debezium`` writes, and reads back.

Invariant: a message says ``before``, ``after`` and ``op``: c for a row that came, d for one that went, u for both of a
key that had one row and has one. Within an epoch what goes from a key stands in front of what comes to it. Values stand
as in JSON lines: decimals, dates and times as text, bytes as base64; what is no number for JSON as text. The same
updates give the same bytes, so a message has no time of writing.

>>> of = Net(pa.table({"id": [1, 1, 2], "n": [5, 6, 7]}), np.array([-1, 1, 1]), np.array([0, 0, 2]))
>>> for row in messages(of, ("id",), 3, "orders").to_pylist():
...     print(row["key"], row["value"])
{"id":1} {"before":{"id":1,"n":5},"after":{"id":1,"n":6},"source":{"connector":"ddflow",...,"epoch":3},"op":"u"}
{"id":2} {"before":null,"after":{"id":2,"n":7},"source":{"connector":"ddflow",...,"epoch":3},"op":"c"}
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Ints
from ddflow.columns.names import DIFF
from ddflow.columns.schema import one_chunk
from ddflow.connectors.files.json_text import json_objects
from ddflow.connectors.formats.cells import CellForm, cells_as, shape_of
from ddflow.connectors.formats.parse import objects
from ddflow.errors import SinkRefused

MESSAGES: Final = pa.schema({"key": pa.string(), "value": pa.string()})
"""The columns of messages."""
_FORM: Final = CellForm(decimals="string", quoted=True)
_AT_ONCE: Final = 1 << 16


class Net(NamedTuple):
    """The net of some updates.  ``rows``: distinct, n of them.  ``diffs``: of each, never 0.  ``keys``: of each, the
    number of its key, below n."""

    rows: pa.Table
    diffs: Ints
    keys: Ints


def in_order(of: Net) -> Net:
    """Sort updates by key; within a key, deleted rows come first.  O(n) if sorted already, else O(n log n)."""
    places = 2 * of.keys + (of.diffs > 0)
    if (places[1:] >= places[:-1]).all():
        return of
    order = np.argsort(places, kind="stable")
    return Net(of.rows.take(pa.array(order)), of.diffs[order], of.keys[order])


def messages(of: Net, key: Sequence[str] | None, epoch: int, output: str) -> pa.Table:
    """Build the change messages of some updates.  O(n).

    ``key``: the columns of a message's key; None: messages have no key.
    """
    of = in_order(of)
    keys, diffs, n = of.keys, of.diffs, of.diffs.size
    pair: Any = np.zeros(n + 1, bool)  # whether a row and the one in front of it are an update
    if key is not None:
        new = np.flatnonzero(np.diff(keys, prepend=-1, append=-1))
        two = new[:-1][np.diff(new) == 2]
        pair[two[(diffs[two] == -1) & (diffs[two + 1] == 1)] + 1] = True
    came = np.flatnonzero(~pair[1:])  # but for the first of two
    updated, times = pair[:-1][came], np.abs(diffs[came])
    after = np.where(diffs[came] > 0, came, -1)
    before = np.where(updated, came - 1, np.where(diffs[came] < 0, came, -1))
    source = {"connector": "ddflow", "name": output, "db": "", "schema": "", "table": output, "epoch": epoch}
    tail = f',"source":{json.dumps(source, separators=(",", ":"))},"op":"'
    parts = []
    for at in range(0, came.size, _AT_ONCE):
        here = slice(at, at + _AT_ONCE)
        texts = [_objects(of.rows, places[here]) for places in (before, after)]
        ops = np.where(updated[here], "u", np.where(after[here] < 0, "d", "c"))
        value = pc.binary_join_element_wise(
            '{"before":', texts[0], ',"after":', texts[1], tail, pa.array(ops), '"}', ""
        )
        keyed = pa.nulls(len(value), pa.string()) if key is None else pa.array(["{}"] * len(value), pa.string())
        if key:
            keyed = _objects(of.rows.select(list(key)), np.maximum(before, after)[here])
        part = pa.table([keyed, value], schema=MESSAGES)
        if (times[here] > 1).any():
            part = part.take(pa.array(np.repeat(np.arange(len(value)), times[here])))
        parts.append(part)
    return pa.concat_tables(parts) if parts else MESSAGES.empty_table()


def rows_of(written: pa.Table, schema: pa.Schema) -> pa.Table:
    """Read the rows of a ``schema`` from messages; ``_diff`` is 1 for a new row, -1 for an old one.  O(bytes).

    Raises `SinkRefused` for a message that ddflow did not write.
    """
    shape = {field.name: shape_of(field.type) for field in schema}
    found, wrong = objects(one_chunk(written.column("value")), {"before": shape, "after": shape})
    parts = []
    for name, diff in (("before", -1), ("after", 1)):
        made = _cast_structs(pc.struct_field(found, name).drop_null(), schema, bool(wrong.any()))
        parts.append(made.append_column(DIFF, pa.array(np.full(made.num_rows, diff, np.int64))))
    return pa.concat_tables(parts)


def texts_of(rows: pa.Table) -> pa.Array:
    """Format rows as JSON texts.  O(bytes)."""
    batches = rows.to_batches(max_chunksize=_AT_ONCE)
    return pa.concat_arrays([pa.array([], pa.string()), *(json_objects(batch, strict=True) for batch in batches)])


def rows_as(texts: pa.Array, schema: pa.Schema) -> pa.Table:
    """Parse rows from the texts of `texts_of`.  O(bytes).  Raises `SinkRefused` for other texts."""
    found, wrong = objects(texts, {field.name: shape_of(field.type) for field in schema})
    return _cast_structs(found, schema, bool(wrong.any()))


def _cast_structs(rows: pa.Array, schema: pa.Schema, wrong: bool) -> pa.Table:
    """Cast the texts in structs to the types of a ``schema``."""
    columns = []
    for field in schema:
        cells, misfits = cells_as(pc.struct_field(rows, field.name), field.type, _FORM)
        wrong |= misfits is not None
        columns.append(cells)
    if wrong:
        asked, remedy = "read messages back", "give them a place of their own"
        raise SinkRefused(asked, "some are not as they were written", remedy)
    return pa.table(columns, schema=schema)


def _objects(rows: pa.Table, places: Ints) -> pa.Array:
    """Format the rows at some places as JSON text; a place below 0 gives null."""
    there = np.flatnonzero(places >= 0)
    batch = pa.RecordBatch.from_arrays(
        [one_chunk(column.take(pa.array(places[there]))) for column in rows.columns], schema=rows.schema
    )
    text = json_objects(batch, strict=True)
    if there.size == places.size:
        return text
    at = np.zeros(places.size, np.int64)
    at[there] = np.arange(there.size)
    return text.take(pa.array(at, mask=places < 0)).fill_null("null")

"""Route the messages of a source with several tables to the inputs of these tables.

Each message goes to one input or is dropped, and the messages of an input keep their order. A message names its table
in Debezium's ``source``, or in the fields of Maxwell, Canal and wal2json. An unreadable message goes to the first
input, whose format reports it.

The key of a tombstone names the table if Debezium is configured to write the name there. A tombstone that names no
table is dropped, because the delete before the tombstone already deleted the key.

Limits: each message is parsed twice, once in this module and once by the format of its input.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.formats.envelope import parse_messages
from ddflow.connectors.formats.messages import Messages, build_table_names, compute_table_mask
from ddflow.connectors.formats.parse import TEXT, Bools
from ddflow.errors import BadMessage, SpecError, shorten

Others = Literal["error", "ignore"]
TABLE, SCHEMA, DB = "table", "schema", "db"
_INSIDE: Final = "source"
_OWN: Final = {TABLE: TABLE, SCHEMA: SCHEMA, DB: "database"}
_IN_KEY: Final = "__dbz__physicalTableIdentifier"
_ABOUT_NONE: Final = pa.array(["m", "M", "B", "C"])
"""Operations that name no table: log messages, and the begin and the commit of a transaction."""


def group_batches_by_input(
    batches: Sequence[pa.RecordBatch], only: str, tables: Mapping[str, str] | None, others: str, asked: str
) -> dict[str, list[pa.RecordBatch]]:
    """Group messages by input.  Without ``tables``, the parameter ``only`` is the input that gets all messages."""
    if tables is None:
        return {only: list(batches)} if batches else {}
    rows: dict[str, list[pa.RecordBatch]] = {}
    for batch in batches:
        for name, some in split_messages_by_input(batch, tables, others, asked).items():
            rows.setdefault(name, []).append(some)
    return rows


def check_table_routing(tables: Mapping[str, str] | None, others: str, asked: str) -> None:
    """Raise `SpecError` for invalid values of ``tables=`` and ``others=``."""
    if others not in get_args(Others):
        raise SpecError(asked, f"others={others!r}", f"use one of {list(get_args(Others))}")
    if tables is not None and not tables:
        raise SpecError(asked, "tables= is empty", "pass tables={'public.orders': 'orders'}")


def split_messages_by_input(
    batch: pa.RecordBatch, tables: Mapping[str, str], others: str, asked: str
) -> dict[str, pa.RecordBatch]:
    """Split a batch of messages into a batch for each input, by the tables of the messages.  O(bytes).

    Raises `BadMessage` for a table that feeds no input.

    >>> batch = pa.record_batch({"value": ['{"op": "c", "source": {"schema": "public", "table": "a"}}']})
    >>> split_messages_by_input(batch, {"public.a": "orders", "b": "people"}, "error", "read t")["orders"].num_rows
    1
    >>> split_messages_by_input(batch, {"b": "people"}, "ignore", "read t")
    {}
    """
    messages = Messages(pa.Table.from_batches([batch]), asked, 0)
    found, silent = _read_table_names(messages)
    whose = np.full(messages.rows, -1)
    whose[np.asarray(pc.and_(found[TABLE].is_null(), messages.value.is_valid())) | messages.broken] = 0
    whose[silent] = -1
    for number, name in enumerate(tables):
        whose[compute_table_mask(name, found)] = number
    lost = np.flatnonzero((whose < 0) & ~silent & np.asarray(found[TABLE].is_valid()))
    if lost.size and others == "error":
        row = int(lost[0])
        shown = shorten(str(build_table_names({name: cells.slice(row, 1) for name, cells in found.items()})[0]), 80)
        remedy = "name it in tables=, or skip tables without an input: others='ignore'; nothing was ingested"
        raise BadMessage(
            asked, f"{messages.locate_message(row)}: it is of the table {shown!r}, which feeds no input", remedy
        )
    inputs, made = list(tables.values()), dict[str, pa.RecordBatch]()
    for name in dict.fromkeys(inputs):
        mine = np.isin(whose, [number for number, each in enumerate(inputs) if each == name])
        if mine.any():
            made[name] = batch if mine.all() else batch.filter(pa.array(mine))
    return made


def _read_table_names(messages: Messages) -> tuple[dict[str, pa.Array], Bools]:
    """Return the table, schema and database of each message; mark the messages without a table."""
    text: dict[str, Any] = dict.fromkeys(["op", "action", *_OWN.values()], TEXT)
    text |= {f"__{n}": TEXT for n in _OWN} | {f"__source_{n}": TEXT for n in _OWN}
    inside = parse_messages(messages.value, text | {_INSIDE: dict.fromkeys(_OWN, TEXT)})

    def cells(*path: str) -> pa.Array:
        return inside.get_cells(*path).cast(pa.string())

    found = {
        name: pc.coalesce(cells(_INSIDE, name), cells(own), cells(f"__source_{name}"), cells(f"__{name}"))
        for name, own in _OWN.items()
    }
    does = pc.coalesce(cells("op"), cells("action"))
    if messages.key is not None and messages.value.null_count:
        in_key = parse_messages(messages.key, {_IN_KEY: TEXT}).get_cells(_IN_KEY).cast(pa.string())
        parts = [(each or "").split(".") for each in pc.if_else(messages.value.is_null(), in_key, None).to_pylist()]
        for name, place in ((TABLE, -1), (SCHEMA, -2)):
            told = [each[place] if len(each) >= -place and each[place] else None for each in parts]
            found[name] = pc.coalesce(found[name], pa.array(told, pa.string()))
    return found, np.asarray(pc.is_in(does, _ABOUT_NONE))

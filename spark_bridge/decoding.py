"""Decode a DataFrame of change feed messages to a DataFrame of rows, which can be used with or without a flow.

Tasks decode with the code of an input's ``format=``, batch by batch, in the order of the messages. Rows with the same
key are not merged. Each event is a row, and a delete is a row too. An unreadable message fails the job, unless the
format drops such messages. The call of `decode` runs no job, and a stream stays a stream.

>>> import ddflow as dd
>>> names = _bind_messages(dd.formats.debezium(), {"id": int, "city": str}, dd.Upsert(key="id")).schema.names
>>> names
['id', 'city', '_position', '_row', '_deleted']
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from ddflow.columns.names import did_you_mean
from ddflow.connectors.formats.base import Format, MessageTarget, decode_messages
from ddflow.connectors.formats.messages import Messages
from ddflow.engine.engine import Flow
from ddflow.errors import SpecError
from ddflow.plan.inputs.bind import BoundUpserts
from ddflow.plan.inputs.spec import Upsert
from spark_bridge.job import map_arrow
from spark_bridge.tasks import Batches, Task, to_spark_batches
from spark_bridge.types import arrow_schema, spark_schema

NAME: Final = "messages"
"""Name of the input in errors."""


@dataclass(frozen=True)
class DecodeTask(Task):
    """The task that decodes messages to rows in Spark's types.

    ``names``: the column names by position. ``beside``: the columns to copy from the messages. O(bytes). Raises
    `BadMessage`.
    """

    format: Format
    target: MessageTarget
    names: tuple[str, ...]
    beside: tuple[str, ...]

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Decode the messages."""
        first, target = 0, self.target
        for batch in batches:
            given = pa.Table.from_batches([batch.rename_columns(list(self.names))])
            made = decode_messages(self.format, given, target, first)
            target = target._replace(table=made.table)
            rows, at = made.rows, pa.array(made.at)
            for name in self.beside:
                rows = rows.append_column(name, given.column(name).take(at))
            first += given.num_rows
            yield from to_spark_batches(rows, NAME)


def decode(frame: DataFrame, format: Format, schema: Any, spec: Upsert, *, keep: Sequence[str] = ()) -> DataFrame:
    """Decode messages of a Debezium topic or another change feed to rows.

    A flow does not need this: ``flow.upserts(..., format=)`` and ``flow.updates(..., format=)`` decode messages
    themselves.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        Messages: ``value`` (binary, text or a struct) and optionally ``key``, ``topic``, ``partition``, ``offset``,
        ``timestamp``. It may be a batch or a stream, for example from ``spark.readStream.format("kafka")``.
    format : Format
        One of ``dd.formats``.
    schema
        The columns of the rows, as in `Flow.upserts`.
    spec : Upsert
        The rules for upserts, with the key. Without ``order_by`` the format adds columns that order the events.
    keep : sequence of str
        Columns of the messages to copy to the rows, such as ``["topic", "partition", "offset"]``.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of ``schema``; ``_position`` and, in most formats, ``_row``, which order the events of a key;
        ``_deleted``, true for rows with only the key (and the columns of ``order_by``); ``_absent``, the missing cells
        of an event, for a format with ``unavailable=True``; ``_bad``, for a format with ``on_bad="drop"``; and the
        columns of ``keep``.

    Raises
    ------
    SpecError, SchemaMismatch, NotArrow
        If spec, format and schema do not fit together; for wrong columns of ``frame``; for a value that is not a
        DataFrame.
    MissingExtra
        If pandas, which PySpark requires, is missing.

    Notes
    -----
    O(bytes) time, in tasks. An unreadable message fails the job with `BadMessage` inside Spark's error, unless the
    format drops such messages. A truncate counts as unreadable here, because only a state knows the deleted rows. If a
    task reads messages of several tables, all messages that do not belong to the table of the first message are bad. If
    a topic has several tables, choose a table with ``table=`` of the format.

    Examples
    --------
    ::

        feed = spark.readStream.format("kafka").option("subscribe", "shop.public.orders")...load()
        rows = spark_bridge.decode(feed, dd.formats.debezium(), {"id": int, "city": str}, dd.Upsert(key="id"))
        latest = dd.Upsert(key="id", order_by=["_position", "_row"], delete=dd.tombstone("_deleted"))
        flow.upserts("orders", rows, latest)
    """
    given, bound = arrow_schema(frame), _bind_messages(format, schema, spec)
    assert bound.format is not None
    if not bound.format.of_rows:
        Messages(given.empty_table(), repr(NAME), 0)
    for name in keep:
        if name not in given.names:
            raise SpecError(f"keep {name!r} of messages", "there is no such column", did_you_mean(name, given.names))
        if name in bound.schema.names:
            raise SpecError(
                f"keep {name!r} of messages",
                "the rows already have a column of that name",
                "rename the column of the rows",
            )
    kept = pa.schema([given.field(name) for name in keep])
    columns = spark_schema(pa.schema([*bound.schema, *kept]), "rows of messages")
    numbered = frame.toDF(*(f"c{i}" for i in range(len(given))))  # Spark interprets case, dots and quotes in names
    task = DecodeTask(bound.format, bound.message_target._replace(history=True), tuple(given.names), tuple(keep))
    return map_arrow(numbered, task, columns)


def _bind_messages(format: Any, schema: Any, spec: Any) -> BoundUpserts:
    """Create an input that receives these messages. Raises `SpecError`."""
    if not isinstance(format, Format):
        raise SpecError("decode messages", f"the format is {format!r:.99}", "pass a format of dd.formats")
    flow = Flow()
    flow.upserts(NAME, schema, spec, format=format)
    bound = flow.inputs[NAME].bound
    assert isinstance(bound, BoundUpserts)
    return bound

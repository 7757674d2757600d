"""Decode a frame of messages of a change feed to a frame of rows, before a flow or without one.

Tasks decode with the code of an input's ``format=``, batch for batch, in the order of the messages. Nothing is folded:
a key has a row for each event, and a delete is a row. A message that cannot be read fails the job, unless the format
drops such. It runs nothing; a frame that is a stream stays one.

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
"""The input's name in errors."""


@dataclass(frozen=True)
class DecodeTask(Task):
    """Messages in, rows out, in types that travel.

    ``names``: of the columns that come. ``beside``: those that go along. O(bytes). Raises `BadMessage`.
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

    A flow does not need this: ``flow.upserts(..., format=)`` and ``flow.updates(..., format=)`` take the messages
    themselves.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        Messages: ``value`` (binary, text or a struct) and, where there are, ``key``, ``topic``, ``partition``,
        ``offset``, ``timestamp``; a batch or a stream, such as ``spark.readStream.format("kafka")`` gives.
    format : Format
        One of ``dd.formats``.
    schema
        The columns that rows have, as `Flow.upserts` takes them.
    spec : Upsert
        Its key.  Without ``order_by`` the rows get columns that order events, which the format knows.
    keep : sequence of str
        Columns of the messages that rows have, too, such as ``["topic", "partition", "offset"]``.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of ``schema``; ``_position`` and, in most formats, ``_row``, by which events of a key are
        ordered; ``_deleted``, true where only the key (and an order of your own) is there; ``_absent``, the cells that
        an event lacks, for a format with ``unavailable=True``; ``_bad``, for one with ``on_bad="drop"``; and those to
        ``keep``.

    Raises
    ------
    SpecError, SchemaMismatch, NotArrow
        For what does not fit: spec, format and schema; the columns of ``frame``; what is no DataFrame.
    MissingExtra
        Without pandas (for PySpark).

    Notes
    -----
    O(bytes), in tasks.  A message that cannot be read fails the job with `BadMessage` inside Spark's error, unless the
    format drops such.  A truncate is one: it deletes rows that only a state knows.  Messages of another table than that
    of the first are bad, as far as one task reads both: of a topic that has several, name one by ``table=`` of the
    format.

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
            raise SpecError(f"keep {name!r} of messages", "rows have a column of that name", "rename it in the rows")
    kept = pa.schema([given.field(name) for name in keep])
    columns = spark_schema(pa.schema([*bound.schema, *kept]), "rows of messages")
    numbered = frame.toDF(*(f"c{i}" for i in range(len(given))))  # Spark minds case, dots and quotes
    task = DecodeTask(bound.format, bound.message_target._replace(history=True), tuple(given.names), tuple(keep))
    return map_arrow(numbered, task, columns)


def _bind_messages(format: Any, schema: Any, spec: Any) -> BoundUpserts:
    """Bind an input of such messages. Raises `SpecError`."""
    if not isinstance(format, Format):
        raise SpecError("decode messages", f"the format is {format!r:.99}", "give one of dd.formats")
    flow = Flow()
    flow.upserts(NAME, schema, spec, format=format)
    bound = flow.inputs[NAME].bound
    assert isinstance(bound, BoundUpserts)
    return bound

"""The other way: the updates of an output as messages, or in the columns that others read changes from.

Invariant: the same rows in the same order as a sink of that mode is given for these updates as one epoch.

>>> updates = pa.table({"id": [1, 1], "n": [5, 6], "_time": [3, 3], "_diff": [-1, 1]})
>>> write(updates, "upsert", key="id").to_pylist()
[{'id': 1, 'n': 6, '_deleted': False}]
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DIFF, TIME, did_you_mean
from ddflow.connectors.frames import to_table
from ddflow.errors import Option, Phrase, SpecError

MODES = ("debezium", "upsert", "changelog", "retract")


def write(
    updates: Any,
    mode: Literal["debezium", "upsert", "changelog", "retract"],
    *,
    key: str | Sequence[str] | None = None,
    output: str = "",
    epoch: int | None = None,
    committed: datetime | None = None,
) -> pa.Table:
    """Convert updates to messages of Debezium, or to the columns of another mode.

    Parameters
    ----------
    updates : table or anything that speaks Arrow
        As a step gives them: the row, ``_time`` and ``_diff``.  They count as one epoch: a row that left and came back
        is not written.
    mode : {"debezium", "upsert", "changelog", "retract"}
        "debezium": ``key`` and ``value``, as JSON without a schema.  "upsert": the row and ``_deleted``, which is true
        for a key whose row is gone; its other columns are null then.  "changelog" and "retract": as of `ddflow.sinks`.
    key : str or sequence of str, optional
        The columns that identify a row at the end of the epoch.  "upsert" needs it; with it "debezium" and "changelog"
        tell updates.
    output : str
        What messages name as their table.
    epoch : int, optional
        What messages and ``_commit_version`` say.  By default the greatest ``_time``.
    committed : datetime, optional
        What ``_commit_timestamp`` says, with a time zone.  By default null: the same updates give the same rows.

    Returns
    -------
    pyarrow.Table
        O(rows).

    Raises
    ------
    SpecError
        For a mode that is none, columns that are not there, and "upsert" without a key.
    NotUnique
        Where a key has several rows and the mode is "upsert".
    CountOverflow
        Where a sum of diffs leaves 64 bits.

    Notes
    -----
    Debezium: ``op`` is c, u or d; an update has ``before`` and ``after``.  Decimals, dates and times are text, bytes
    are base64; ``source`` has ``connector`` "ddflow", the output and the epoch.  There are no tombstones and no
    ``ts_ms``, so that the same updates give the same bytes.  ``dd.formats.debezium(decimals="string")`` reads them.

    Examples
    --------
    >>> updates = pa.table({"id": [7], "_time": [3], "_diff": [1]})
    >>> write(updates, "debezium", key="id", output="ids")["value"][0].as_py()
    '{"before":null,"after":{"id":7},"source":{"connector":"ddflow",...,"table":"ids","epoch":3},"op":"c"}'
    """
    from ddflow.connectors.modes import changes, with_deletes  # it reads cells as formats do

    asked = f"dd.formats.write(mode={mode!r})"
    if mode not in MODES:
        raise SpecError(asked, "there is no such mode", f"use one of {list(MODES)}")
    by = None if key is None else (key,) if isinstance(key, str) else tuple(key)
    table = _table(updates, by or (), asked)
    if mode == "upsert" and by is None:
        raise SpecError(asked, "it has no key", Phrase("give ", Option("key"), ", the columns that identify a row"))
    if epoch is None:
        epoch = int(np.max(np.asarray(table.column(TIME)).astype(np.int64), initial=0))
    secret = Secret.fresh()
    at = None if committed is None else round(committed.timestamp() * 1000)
    made = changes(mode, table, by, epoch, secret, output, at)
    return made.rows if by is None or made.gone is None else with_deletes(made, by, secret)


def _table(updates: Any, by: Sequence[str], asked: str) -> pa.Table:
    """Convert updates to a table.  Raises `SpecError` if columns are missing."""
    table = to_table(updates, "dd.formats.write", pa.schema([]))
    for name in (TIME, DIFF, *by):
        if name not in table.schema.names:
            remedy = Phrase(
                "give what a step gave, and columns of it as ",
                Option("key"),
                f"; {did_you_mean(name, table.schema.names)}",
            )
            raise SpecError(asked, f"the updates have no column {name!r}", remedy, column=name)
    return table

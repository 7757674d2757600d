"""What orders the events of a change feed: where they stood in the log of their source.

Invariant: two events of one key have the order in which their source committed them, as far as messages say it: the
log position of Postgres, the number of MySQL's file with the position in it and the row, else the offset of the
message. What has none of these is null, and its arrival decides.

>>> source = {"lsn": pa.array([None, None]), "file": pa.array(["mysql-bin.000007"] * 2), "pos": pa.array(["4", "120"]),
...           "row": pa.array(["0", "3"])}
>>> positions(source, Messages(pa.table({"value": ["", ""]}), "'t'", 0), np.arange(2))["_position"].to_pylist()
[30064771076, 30064771192]
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.parse import Bools

POSITION: Final = "_position"
ROW: Final = "_row"


def positions(source: dict[str, pa.Array], messages: Messages, of: Any) -> dict[str, pa.Array]:
    """Build the order columns of events; ``of``: the message of each.  O(n)."""
    n = of.size
    source = {name: pa.nulls(n, pa.string()) for name in ("lsn", "file", "pos", "row")} | source
    place = whole(source["lsn"])
    if place.null_count and source["file"].null_count < n:
        number = whole(pc.struct_field(pc.extract_regex(source["file"].cast(pa.string()), r"(?P<n>[0-9]+)$"), "n"))
        both = pc.add(pc.multiply(number, 1 << 32), whole(source["pos"]))
        place = pc.coalesce(place, both)
    if place.null_count and messages.offset is not None:
        place = pc.coalesce(place, messages.offset.take(pa.array(of)))
    # A row within nothing known orders nothing.
    row = pc.if_else(pc.is_valid(place), pc.fill_null(whole(source["row"]), 0), 0)
    return {POSITION: place, ROW: row}


def whole(cells: pa.Array) -> pa.Array:
    """Convert texts to integers; other texts become null.  O(n)."""
    try:
        return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        plain = pc.match_substring_regex(cells, r"^[0-9]{1,18}$")
        return pc.if_else(plain, cells, pa.scalar(None, cells.type)).cast(pa.int64())


def filled(order: dict[str, pa.Array], lacking: Bools, messages: Messages, at: Any) -> dict[str, pa.Array]:
    """Fill missing positions from the next event of the partition that has one, else from the last.

    ``lacking``: which may be filled.  ``at``: the message of each.  O(n log n) if some are missing.
    """
    known = np.asarray(order[POSITION].is_valid())
    rows = np.flatnonzero(lacking & ~known)
    if not rows.size or not known.any():
        return order
    n = at.size
    of: Any = np.zeros(n, np.int64)
    if messages.partition is not None:
        of = np.asarray(pc.fill_null(messages.partition, -1))[at]
    by = np.argsort(of, kind="stable")
    there = np.flatnonzero(known[by])
    place = np.empty(n, np.int64)
    place[by] = np.arange(n)
    at = np.searchsorted(there, place[rows])
    after, before = there[np.minimum(at, there.size - 1)], there[np.maximum(at - 1, 0)]
    fits = (at < there.size) & (of[by[after]] == of[rows])
    found = np.where(fits, by[after], by[before])
    fine = of[found] == of[rows]
    which = np.arange(n)
    which[rows[fine]] = found[fine]
    return {name: column.take(pa.array(which)) for name, column in order.items()}

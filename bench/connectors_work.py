"""Make rows and messages of the connectors bench from a seed.

All contenders of a line get the same bytes. The results of contenders are compared with rows that were computed
independently. Rows are shop orders: a key and seven columns of common types. 5 % of the events are deletes. An update
has no ``before``, as in Postgres without a full replica identity. A message has about 600 bytes, in Debezium's format
for Postgres without a schema. This module does not measure time.

>>> events = orders(1_000)
>>> said = messages(events)["value"]
>>> 560 < sum(map(len, said.to_pylist())) / 1_000 < 660, digest(last(events)) == digest(events.filter(events["gone"]))
(True, False)
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.int64(),
        "city": pa.string(),
        "status": pa.string(),
        "amount": pa.decimal128(12, 2),
        "paid": pa.bool_(),
        "note": pa.string(),
        "placed": pa.timestamp("us"),
    }
)
GONE = "gone"
CITIES = ("Aarau", "Basel", "Bern", "Chur", "Genève", "Lugano", "St. Gallen", "Zürich")
STATUS = ("new", "packed", "sent", "returned")
BATCH = 100_000
"""The number of messages in a batch."""
BEGAN = 1_700_000_000_000_000


def orders(n: int, keys: int | None = None, seed: int = 7) -> pa.Table:
    """Make ``n`` events with the columns of an order and the column ``gone``, which is true for a delete.

    ``keys`` is the number of keys, by default n // 2.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, keys or max(n // 2, 1), n)
    columns = {
        "id": pa.array(ids),
        "customer": pa.array(rng.integers(0, 50_000, n)),
        "city": pa.array(CITIES).take(pa.array(rng.integers(0, len(CITIES), n))),
        "status": pa.array(STATUS).take(pa.array(rng.integers(0, len(STATUS), n))),
        "amount": _money(rng.integers(0, 10_000_000, n)),
        "paid": pa.array(rng.random(n) < 0.5),
        "note": _joined("leave it at the door, no. ", pa.array(rng.integers(10**9, 10**10, n)).cast(pa.string())),
        "placed": pa.array(BEGAN + np.cumsum(rng.integers(1, 1000, n))).cast(pa.timestamp("us")),
    }
    table = pa.table(columns).cast(SCHEMA)
    return table.append_column(GONE, pa.array(rng.random(n) < 0.05))


def _money(cents: Any) -> pa.Array:
    whole, rest = (pa.array(each).cast(pa.string()) for each in (cents // 100, cents % 100 + 100))
    return _joined(whole, ".", pc.utf8_slice_codeunits(rest, 1)).cast(SCHEMA.field("amount").type)


def _joined(*parts: Any) -> Any:
    """Concatenate constant texts and text columns, row by row."""
    return pc.binary_join_element_wise(*parts, "")


def last(events: pa.Table) -> pa.Table:
    """Return the final rows: the last event of each key, unless this event is a delete."""
    ids = events["id"].to_numpy()[::-1]
    rows = len(ids) - 1 - np.unique(ids, return_index=True)[1]
    left = events.take(pa.array(np.sort(rows)))
    return left.filter(pc.invert(left[GONE])).drop_columns(GONE)


def messages(events: pa.Table) -> pa.Table:
    """Convert the events to Debezium messages with their keys."""
    n = events.num_rows
    gone, first = (np.asarray(each) for each in (events[GONE], pa.array(np.zeros(n, np.bool_))))
    first = np.zeros(n, np.bool_)
    first[np.unique(events["id"].to_numpy(), return_index=True)[1]] = True
    text = {name: pc.cast(events[name].combine_chunks(), pa.string()) for name in ("id", "customer", "amount")}
    at = pc.cast(events["placed"].combine_chunks().cast(pa.int64()), pa.string())
    paid = pc.if_else(events["paid"].combine_chunks(), "true", "false")
    city, status, note = (events[name].combine_chunks() for name in ("city", "status", "note"))
    key = _joined('{"id":', text["id"], "}")
    row = _joined(
        *('{"id":', text["id"], ',"customer":', text["customer"], ',"city":"', city, '","status":"', status),
        *('","amount":"', text["amount"], '","paid":', paid, ',"note":"', note, '","placed":', at, "}"),
    )
    before, after = pc.if_else(gone, key, "null"), pc.if_else(gone, "null", row)
    op = pa.array(np.where(gone, "d", np.where(first, "c", "u")))
    lsn = pa.array(24_000_000 + 56 * np.arange(n)).cast(pa.string())
    milliseconds = pc.utf8_slice_codeunits(at, 0, 13)
    number = pa.array(500 + np.arange(n) // 3).cast(pa.string())
    value = _joined(
        *('{"before":', before, ',"after":', after, ',"source":{"version":"3.6.3.Final","connector":"postgresql",'),
        *('"name":"shop","ts_ms":', milliseconds, ',"snapshot":"false","db":"shop","sequence":"[\\"', lsn, '\\",\\"'),
        *(lsn, '\\"]","ts_us":', at, ',"ts_ns":', at, '000,"schema":"public","table":"orders","txId":', number),
        *(',"lsn":', lsn, ',"xmin":null},"transaction":null,"op":"', op, '","ts_ms":', milliseconds),
        *(',"ts_us":', at, ',"ts_ns":', at, "000}"),
    )
    return pa.table({"value": value.cast(pa.binary()), "key": key.cast(pa.binary())})


def upserted(events: pa.Table) -> str:
    """Return a digest of events, made from the rows of the upserts and the keys of the deletes."""
    gone = pc.sum(events.filter(events[GONE])["id"]).as_py() or 0
    return f"{digest(events.filter(pc.invert(events[GONE])))} {gone}"


def digest(rows: pa.Table) -> str:
    """Return the number of rows and a sum over the rows that does not depend on their order."""
    import duckdb

    told = rows.select(SCHEMA.names).cast(SCHEMA)
    each = f"hash({', '.join(map(repr, SCHEMA.names))})".replace("'", '"')
    with duckdb.connect() as connection:
        sums = connection.from_arrow(told).aggregate(f"count(*), coalesce(sum({each}::hugeint), 0)")
        ((count, total),) = sums.fetchall()
    return f"{count} {int(total) % 2**64:016x}"


def in_csv(rows: pa.Table) -> bytes:
    """Format rows as input for the COPY command of Postgres."""
    out = io.BytesIO()
    csv.write_csv(rows, out, csv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return out.getvalue()

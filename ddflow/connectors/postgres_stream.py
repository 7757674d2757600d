"""What Postgres sends: the rows of a query by COPY, as tables of Arrow, and places in its log.

Invariant: a block is of whole rows, and no cell is touched by Python: psycopg hands the bytes of COPY on, and Arrow
parses them.  A place compares as a number, and is written as Postgres writes it.

>>> place("16/B374D848") - place("16/B374D840"), text_of(place("16/B374D848"))
(8, '16/B374D848')
"""

import io
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as csv

from ddflow.connectors.postgres_catalog import literal

BLOCK: Final = 4 << 20
_BETWEEN, _AROUND = "\x02", "\x01"
"""What is between cells, and around those that need it: hardly any, because JSON escapes both."""


def streamed(connection: Any, query: str) -> Iterator[pa.Table]:
    """Stream the result of a query by COPY: the columns ``lsn`` and ``data``."""
    form = f"format csv, delimiter {literal(_BETWEEN)}, quote {literal(_AROUND)}"
    with connection.cursor().copy(f"copy ({query}) to stdout ({form})") as copy:
        block = io.BytesIO()
        for row in copy:
            block.write(row)
            if block.tell() >= BLOCK:
                yield _parse_csv(block)
                block = io.BytesIO()
        if block.tell():
            yield _parse_csv(block)


def place(lsn: str) -> int:
    """Convert a place in the log to a number."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def text_of(at: int) -> str:
    """Format a place in the log like Postgres."""
    return f"{at >> 32:X}/{at & 0xFFFFFFFF:X}"


def messages(data: pa.ChunkedArray) -> pa.RecordBatch:
    """Convert messages to rows of an input."""
    return pa.record_batch({"value": data.combine_chunks() if data.num_chunks != 1 else data.chunk(0)})


def written(message: str) -> float | None:
    """Return when the transaction of a message was committed, in seconds since 1970; None if it has no time.

    >>> written('{"action":"C","timestamp":"1970-01-01 01:00:02.5+01"}'), written('{"action":"C"}')
    (2.5, None)
    """
    said = json.loads(message).get("timestamp")
    return None if said is None else datetime.fromisoformat(said).timestamp()


def _parse_csv(block: io.BytesIO) -> pa.Table:
    """Parse whole rows of CSV."""
    convert = csv.ConvertOptions(column_types={"lsn": pa.string(), "data": pa.string()})
    read: Any = csv.ReadOptions(use_threads=False, block_size=block.tell() + 1)
    read.column_names = ["lsn", "data"]
    block.seek(0)
    parse: Any = csv.ParseOptions(delimiter=_BETWEEN, newlines_in_values=True)
    parse.quote_char = _AROUND
    with csv.open_csv(block, read, parse, convert) as reader:
        return reader.read_all()

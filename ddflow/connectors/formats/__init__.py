"""Decode messages of brokers to upserts.  ``dd.formats`` has the values for ``format=`` of `ddflow.Flow.upserts`.

A format converts a batch of messages to a batch of upserts. DuckDB parses the JSON (extra ``duckdb``).

>>> import pyarrow as pa, ddflow as dd
>>> flow, columns = dd.Flow(), {"id": pa.int64(), "city": pa.string()}
>>> people = flow.upserts("people", columns, dd.Upsert(key="id"), format=dd.formats.debezium())
>>> _ = flow.output("people", people)
>>> with flow.open() as engine:
...     value = '{"op": "c", "after": {"id": 1, "city": "Bern"}, "source": {"lsn": 7}}'
...     engine.step({"people": [{"value": value}]}, time=1)["people"].to_pylist()
[{'id': 1, 'city': 'Bern', '_time': 1, '_diff': 1}]
"""

from typing import Final

from ddflow.connectors.formats.base import Format
from ddflow.connectors.formats.debezium import debezium
from ddflow.connectors.formats.mysql_feeds import canal, maxwell
from ddflow.connectors.formats.plain import custom, delta_cdf, kcat, plain_json, write
from ddflow.connectors.formats.wal2json import wal2json

__all__ = ["Format", "canal", "custom", "debezium", "delta_cdf", "kcat", "maxwell", "plain_json", "wal2json", "write"]

KINDS: Final[dict[str, type[Format]]] = {
    each.kind: each for each in (debezium, maxwell, canal, wal2json, kcat, delta_cdf, plain_json, custom)
}
"""All formats, by their names in plans."""

"""``--format debezium`` and its like: files whose lines are messages.

Invariant: columns come from the state that is continued, else from what the first messages show: types that a schema
of Connect names, and guessed ones as of JSON lines; ``--types`` wins over both. Messages are decoded where rows are
taken in, as `ddflow.Flow.upserts` does with ``format=``.

>>> message_format("kcat:debezium"), message_format("csv")
(dd.formats.kcat(dd.formats.debezium()), None)
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from ddflow.connectors import formats
from ddflow.connectors.files import FilesSource
from ddflow.connectors.formats import Format
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.row_columns import schema_of
from ddflow.errors import SpecError

FORMATS: Final[Mapping[str, Format]] = {
    "debezium": formats.debezium(),
    "debezium-flat": formats.debezium(flattened=True),
    "maxwell": formats.maxwell(),
    "canal": formats.canal(),
    "wal2json": formats.wal2json(),
}
"""By the words of the command line."""
KCAT: Final = "kcat:"


def message_format(text: str | None) -> Format | None:
    """The format that a word means; None for a kind of file.  Raises `SpecError`."""
    if text is None or not text.startswith(KCAT):
        return FORMATS.get(text or "")
    if text.removeprefix(KCAT) not in FORMATS:
        raise SpecError(f"--format {text}", "there is no such format", f"write {KCAT} and one of {list(FORMATS)}")
    return formats.kcat(FORMATS[text.removeprefix(KCAT)])


def columns_of(given: FilesSource, asked: str, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns of the rows in files of messages.  ``asked``: their format's word.  O(bytes looked at).

    Raises `SpecError` where messages show no types, and what `open_files` raises.
    """
    of = message_format(asked)
    assert of is not None
    values = Messages(pa.table({"value": given.messages()}), "the first messages", 0).value.drop_null()
    found = of.examples(values)
    if found is None or not len(found.rows):
        if types:
            return pa.schema(list(types.items()))
        told = "its messages do not tell types" if found is None else "the first messages have no row"
        raise SpecError(f"--format {asked}", told, "declare all columns: --types id=int64,city=string")
    guessed = schema_of(found.rows.to_pylist(), {**found.types, **types})
    return pa.schema([field for field in guessed if not field.name.startswith("__")])

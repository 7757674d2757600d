"""``--format debezium`` and its like: files whose lines are messages.

Invariant: columns come from the state that is continued, else from what the first messages show: types that a schema
of Connect names, and guessed ones as of JSON lines; ``--types`` wins over both. Messages are decoded where rows are
taken in, as `ddflow.Flow.upserts` does with ``format=``.

>>> message_format("kcat:debezium"), message_format("csv")
(dd.formats.kcat(dd.formats.debezium()), None)
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import typer

from ddflow.cli.say import say
from ddflow.columns.names import did_you_mean
from ddflow.connectors import formats
from ddflow.connectors.files import FilesSource
from ddflow.connectors.formats import Format
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.row_columns import schema_of
from ddflow.errors import SpecError
from ddflow.terminal import counted

FORMATS: Final[Mapping[str, Format]] = {
    "debezium": formats.debezium(),
    "debezium-flat": formats.debezium(flattened=True),
    "maxwell": formats.maxwell(),
    "canal": formats.canal(),
    "wal2json": formats.wal2json(),
}
"""The formats by their words on the command line."""
KCAT: Final = "kcat:"


def message_format(text: str | None, on_bad: Any = "stop") -> Format | None:
    """Return the format that a word means; None for a kind of file.  Raises `SpecError`."""
    word = (text or "").removeprefix(KCAT)
    if text is None or (text == word and word not in FORMATS):
        return None
    if word not in FORMATS:
        raise SpecError(f"--format {text}", "there is no such format", f"write {KCAT} and one of {list(FORMATS)}")
    of = replace(FORMATS[word], on_bad=on_bad)
    return of if text == word else formats.kcat(of)


def check_bad(format: str | None, on_bad: str, output: Path | None) -> None:
    """Raise `typer.BadParameter` for options of bad messages that contradict each other."""
    if on_bad != "stop" and message_format(format) is None:
        raise typer.BadParameter("--on-bad is of messages: say which they are, such as --format debezium")
    if output is not None and on_bad == "stop":
        raise typer.BadParameter("--bad-output is of messages that are left out: give --on-bad drop too")


def say_bad(messages: int, output: Path | None) -> None:
    """Say where the messages are that could not be read."""
    if messages and output is None:
        say(f"{counted(messages, 'message')} could not be read: --bad-output FILE writes them, with reasons", err=True)


def columns_of(given: FilesSource, asked: str, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Find the columns of the rows in files of messages.  ``asked``: their format's word.  O(bytes looked at).

    Raises `SpecError` if messages show no types, and as `open_files` does.
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
    columns = pa.schema([field for field in guessed if not field.name.startswith("__")])
    for name in types:
        if name not in guessed.names:
            near = did_you_mean(name, columns.names)
            say(f"columns: no message looked at has {name!r}, which is declared: {near}", err=True)
    return columns

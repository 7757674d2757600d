"""Messages that are rows: objects of JSON, or structs, keyed as Kafka does; and what a function makes of messages.

Invariant: a message without a value deletes its key; every other one upserts all of its row, where a column that it
does not name is null. What the row lacks of the key, the message's key says.

>>> from ddflow.connectors.formats.base import Target, decoded, events_schema
>>> format, columns = PlainJson(), pa.schema({"id": pa.int64(), "city": pa.string()})
>>> target = Target("'people'", columns, ("id",), (), True, events_schema(format, columns, True))
>>> came = pa.table({"key": ["1", "2"], "value": ['{"id": 1, "city": "Bern"}', None], "offset": [7, 8]})
>>> for row in decoded(format, came, target).rows.to_pylist():
...     print(row)
{'id': 1, 'city': 'Bern', '_position': 7, '_deleted': False}
{'id': 2, 'city': None, '_position': 8, '_deleted': True}
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.schema import check_sound, is_text, lossless, one_chunk, plain
from ddflow.connectors.formats import examples
from ddflow.connectors.formats.base import DELETED, BadMessages, Format, Ints, Target, Upserts
from ddflow.connectors.formats.cells import BINARIES, CellForm, cells_as, shape_of, shown
from ddflow.connectors.formats.decimals import MODES
from ddflow.connectors.formats.envelope import Inside, opened, typed
from ddflow.connectors.formats.examples import Examples
from ddflow.connectors.formats.keys import key_cells
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.parse import Bools, put_cells
from ddflow.connectors.formats.positions import POSITION
from ddflow.connectors.formats.row_columns import Path
from ddflow.connectors.frames import to_table
from ddflow.errors import BadMessage, SchemaMismatch, cut


@dataclass(frozen=True, repr=False, kw_only=True)
class PlainJson(Format):
    """`ddflow.formats.plain_json` makes it and has its options."""

    decimals: str = "string"
    binary: str = "base64"

    kind: ClassVar[str] = "plain_json"
    order: ClassVar[Any] = ((POSITION, pa.int64()),)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choose(decimals=MODES, binary=BINARIES)

    row_path: ClassVar[Path] = ()

    def examples(self, values: pa.Array) -> Examples:
        """See `Format`: the messages themselves."""
        return examples.shown(values, ["$"])

    def upserts(self, messages: Messages, target: Target, bad: BadMessages) -> Upserts:
        """See `Format`."""
        how = CellForm(decimals=self.decimals, binary=self.binary)
        inside = opened(messages.value, {field.name: shape_of(field.type) for field in target.columns}, messages.exact)
        bad.mark(np.flatnonzero(inside.wrong & ~bad.mask), "it is no JSON")
        deleted = np.asarray(inside.body.is_null())
        at = np.arange(messages.rows)
        columns = {field.name: read_cells(inside, (), field, how, at, bad) for field in target.columns}
        lacking = np.zeros(messages.rows, np.bool_)
        for name in target.key:
            lacking |= np.asarray(columns[name].is_null())
        if (rows := np.flatnonzero(lacking)).size:
            _fill_keys(columns, rows, messages, target, how)
        no_rows(inside.body, messages, deleted, bad)
        for name in target.key:
            none = np.flatnonzero(np.asarray(columns[name].is_null()) & deleted)
            bad.mark(none, f"it has no value, and its key does not say {name!r}")
        return Upserts(columns, deleted, {POSITION: offsets(messages)} if target.ordered else {})


def _fill_keys(columns: dict[str, pa.Array], rows: Ints, messages: Messages, target: Target, how: CellForm) -> None:
    """Fill the missing key columns of rows from the keys of their messages."""
    for name, found in key_cells(messages, rows, target, how).items():
        lacking = columns[name].take(pa.array(rows)).is_null()
        columns[name] = put_cells(columns[name], rows[np.asarray(lacking)], found.filter(lacking))


def no_rows(body: pa.Array, messages: Messages, deleted: Any, bad: BadMessages) -> None:
    """Mark messages with JSON that is no object: they would be rows of nulls."""
    if not is_text(messages.value.type) or not len(body):
        return
    empty = ~deleted
    for cells in body.flatten():
        empty &= np.asarray(cells.is_null())
    rows = np.flatnonzero(empty)
    if rows.size:
        objects_here = pc.starts_with(pc.utf8_trim_whitespace(messages.value.take(pa.array(rows))), "{")
        bad.mark(rows[~np.asarray(objects_here)], "it is no object of JSON")


def read_cells(
    inside: Inside,
    path: Sequence[str],
    field: pa.Field,
    usual: CellForm,
    at: Ints,
    bad: BadMessages,
    ignored: Bools | None = None,
) -> pa.Array:
    """Return a column below a path in its type, and mark the messages of cells that do not fit.

    ``at``: the message of each cell.  ``ignored``: cells that may be anything.
    """
    made, wrong = typed(inside, path, field.name, field.type, usual)
    if wrong is not None:
        rows = np.flatnonzero(wrong if ignored is None else wrong & ~ignored)
        misfit(inside.cells(*path, field.name), rows, field, at, bad, inside.forms(path, field.name, usual))
    return made


def misfit(
    cells: pa.Array, rows: Ints, field: pa.Field, at: Ints, bad: BadMessages, how: Callable[[int], CellForm]
) -> None:
    """Mark the messages of cells that do not fit their column; ``at``: the message of each.  ``how``: as of each."""

    def reason(n: int) -> str:
        cell, why = shown(cells[int(rows[n])].as_py(), field.type, how(int(rows[n])))
        bad.narrow[int(at[rows[n]])] = (field, cell.strip("'"))
        return f"column {field.name!r} is {cut(cell, 80)}, {why}"

    bad.mark(at[rows], reason)


def _take_column(column: pa.ChunkedArray, field: pa.Field, asked: str) -> pa.Array:
    """Cast a column from a function to its type; text is read as in messages.  Raises `BadMessage`."""
    cells, kind = plain(one_chunk(column)), field.type
    try:
        check_sound(pa.table({field.name: cells}), asked)
        if not is_text(cells.type) or is_text(kind):
            return lossless(column, field, asked)
    except SchemaMismatch as error:
        found = f"its function gave {field.name!r} as {column.type}: {error.found}"
        raise BadMessage(asked, found, f"give {kind}; nothing was taken in") from None
    made, wrong = cells_as(cells, kind, CellForm(decimals="string"))
    if wrong is not None:
        text, why = shown(cells[int(np.argmax(wrong))].as_py(), kind, CellForm(decimals="string"))
        found = f"its function gave {field.name!r} as {column.type}: {cut(text, 80)}, {why}"
        raise BadMessage(asked, found, f"give {kind}; nothing was taken in")
    return made


def offsets(messages: Messages) -> pa.Array:
    """Return the offsets of messages; null if they have none."""
    return pa.nulls(messages.rows, pa.int64()) if messages.offset is None else messages.offset


@dataclass(frozen=True, repr=False, kw_only=True)
class Custom(Format):
    """`ddflow.formats.custom` makes it."""

    function: Callable[[pa.Table], Any]

    kind: ClassVar[str] = "custom"
    order: ClassVar[Any] = ((POSITION, pa.int64()),)

    def needs(self) -> None:
        """Do nothing: it only needs its function."""

    def upserts(self, messages: Messages, target: Target, bad: BadMessages) -> Upserts:
        """See `Format`.  Raises `BadMessage` for an error of the function, and for rows that are no upserts."""
        asked = f"the format of {target.what}"
        try:
            made = to_table(self.function(messages.table), asked, target.columns)
        except Exception as error:
            found = f"its function raised {type(error).__name__}: {cut(str(error))}"
            raise BadMessage(asked, found, "mend the function or the messages; nothing was taken in") from error
        known = {**{field.name: field.type for field in target.columns}, POSITION: pa.int64(), DELETED: pa.bool_()}
        columns = {
            name: _take_column(made.column(name), pa.field(name, kind), asked)
            if name in made.column_names
            else pa.nulls(made.num_rows, kind)
            for name, kind in known.items()
        }
        if more := [name for name in made.column_names if name not in known]:
            raise BadMessage(asked, f"its function gave the columns {more}", f"give some of {list(known)}")
        if POSITION not in made.column_names and made.num_rows == messages.rows:
            columns[POSITION] = offsets(messages)
        deleted = np.asarray(pc.fill_null(columns.pop(DELETED), False))
        position = columns.pop(POSITION)
        return Upserts(columns, deleted, {POSITION: position} if target.ordered else {}, np.arange(made.num_rows))

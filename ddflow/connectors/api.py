"""Define the protocol of connectors: a `Source` delivers rows with positions, a `TableSink` takes committed epochs.

A source returns rows and the position after them. ddflow commits the position with the epoch of the rows, so after a
crash ddflow continues to read at the last committed position. After the commit of an epoch, a sink writes the epoch and
a `TargetRecord` in one transaction of the target. After a restart, ddflow reads the record in the target to find the
last epoch that the target has. Declarations (`dd.sources.*`, `dd.sinks.*`) can be copied and named in a manifest. Open
objects hold connections. ddflow opens a connector again after `SourceFailed` or `SinkFailed`, and after a rejected
login (`SourceNotLetIn`, `SinkNotLetIn`) if an earlier login succeeded. Any other error ends the run.

>>> Polled({"orders": []}, {"offset": 7}).position
{'offset': 7}
>>> TargetRecord("0" * 32, "by_city", 7, "f" * 32).epoch
7
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from ddflow.columns.names import find_nearest_name
from ddflow.errors import SinkRefused, SpecError, UnreadableInput
from ddflow.metrics import Look

Mode = Literal["upsert", "changelog", "retract", "debezium", "updates"]


BREAKS: Final[ContextVar[list[Callable[[], object]] | None]] = ContextVar("BREAKS", default=None)
"""Functions that abort connections: those that a connector opened during the current call.

Another thread calls these functions to stop the call.
"""


class SourceNotLetIn(UnreadableInput):
    """Rejected login to a source.

    At the start of a run, a rejected login is a mistake of the user. After the start, a rejected login counts as an
    outage, for example after a password change.
    """


class SinkNotLetIn(SinkRefused):
    """Rejected login to a sink.  ddflow handles it like `SourceNotLetIn`."""


class UndeclaredColumn(NamedTuple):
    """Column of a source that the input does not declare.

    ``kind``: type of the column, None until a value determines it.  ``where``: place of the column, for messages.
    """

    kind: pa.DataType | None
    where: str


class BatchStart(NamedTuple):
    """Place where a batch starts, for error messages.

    ``file``: name of the file.  ``first``: number of the batch's first row, as the reader of the file counts rows.
    """

    file: str
    first: int


class Polled(NamedTuple):
    """Batch from a source."""

    rows: Mapping[str, Sequence[pa.RecordBatch]]
    """Batches of rows for each input, in the order in which the source returns the rows."""
    position: Any
    """Position after these rows, as a JSON value; None if an epoch must not end after these rows."""
    whole: frozenset[str] = frozenset()
    """Inputs whose full contents are in ``rows``.

    ddflow deletes each key of these inputs for which ``rows`` has no row.
    """
    beside: Mapping[str, Mapping[str, UndeclaredColumn]] = MappingProxyType({})
    """Undeclared columns of each input.

    The mapping is empty for sources of messages, because the message format finds undeclared columns.
    """
    spots: Mapping[str, Sequence[BatchStart]] = MappingProxyType({})
    """Place where each batch starts, by input, for error messages.

    The mapping is empty for sources of messages, because each message contains its place.
    """
    orders: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    """Values of the order columns in deletions, for each input in ``whole``.

    By default a deletion gets the greatest order value among the rows of its input.
    """


class OpenSource(ABC):
    """An open source, which returns batches of rows."""

    reached: float | None = None
    """Unix time in seconds up to which the source has delivered everything; None if this time is unknown.

    It is the write time of the last rows, by the source's clock, or the time of the last check without new rows.
    """

    @abstractmethod
    def poll(self, room: int) -> Polled | None:
        """Return the next rows, about ``room`` bytes at most, or None if no rows arrive within a short wait.

        Raises `SourceFailed`, `SourceChanged`, `UnreadableInput`, `SchemaMismatch`.
        """

    def keyed(  # noqa: B027 - most sources have no keys
        self, keys: Mapping[str, Sequence[str]], whole: Collection[str]
    ) -> None:
        """Note the key columns of the inputs in which a new row replaces the earlier row with the same key.

        ``keys``: key columns by input, without the inputs that combine rows of a key in another way.  ``whole``: the
        inputs that may get their full contents at once.  ddflow calls the method once, before the first poll.  Raises
        `UnreadableInput` if the source identifies the rows of an input by columns other than these key columns.
        """

    def declared(self, new: Mapping[str, Collection[str]]) -> None:  # noqa: B027 - most learn of columns from rows
        """Note which declared columns of each input the state does not have yet.

        ddflow calls the method once, before the first poll.  Raises `UnreadableInput` for a column that the source does
        not have.
        """

    def note_guesses(self, columns: Mapping[str, Collection[str]]) -> None:  # noqa: B027 - most sources have types
        """Note the undeclared columns that a run added to each input.

        ddflow guessed the types of these columns, so the source must not convert their values. ddflow calls the method
        once, before the first poll.
        """

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the source will deliver no more rows."""

    @abstractmethod
    def lag(self) -> int | None:
        """Return how many rows, messages or bytes are still unread, in the source's ``unit``; None if unknown."""

    @property
    def waits(self) -> bool:
        """Whether the source waits for a commit before it delivers more rows, so that the epoch should end now."""
        return False

    def acknowledge(self, position: Any) -> None:  # noqa: B027 - most sources ignore commits
        """Note a committed position, so that the source can drop earlier rows.  Called after each commit."""

    def close(self) -> None:  # noqa: B027 - most hold no connection
        """Close the connections.  A second call has no effect."""


class Source(ABC):
    """The declaration of a source.

    - ``kind``: the kind of source in one word, stored in manifests.
    - ``unit``: the unit of `OpenSource.lag`, as a plural noun.
    - ``positions``: the type of the source's positions, for msgspec.
    - ``shared``: whether a state may read one target under several names. The value is False for a source, such as a
      replication slot, that drops rows after a commit.
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "rows"
    shared: ClassVar[bool] = True
    positions: ClassVar[Any] = Any

    @property
    @abstractmethod
    def target(self) -> str:
        """Address of the source for manifests and messages, without credentials."""

    @classmethod
    def said(cls, position: Any) -> str:
        """Describe a position in words that fit after "read up to"."""
        return json.dumps(position)

    @classmethod
    def placed(cls, place: int) -> int | str:
        """Describe the ``_position`` of an event in the notation of the source, such as an LSN of Postgres."""
        return place

    @classmethod
    def without(cls, position: Any, inputs: Collection[str]) -> Any:
        """Remove dropped inputs from a position.  Most sources return the position unchanged."""
        return position

    def inputs(self, name: str) -> Sequence[str]:
        """Return the inputs that the source feeds if it is attached as ``name``.

        Most sources feed one input, ``name``.
        """
        return (name,)

    def needs(self) -> None:  # noqa: B027 - most need no library
        """Raise `MissingExtra` if a required library is not installed.  The method opens no connection."""

    @abstractmethod
    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Begin to read after a position.

        ``inputs``: the declared columns of each input that the source feeds.  If the source no longer has a declared
        column, the rows lack this column.  `Polled.beside` names the columns of the source that are not declared.
        ``position``: the position in the manifest; None for the beginning.  Raises `SourceFailed`, `SourceChanged`,
        `SpecError`.
        """


class TargetRecord(NamedTuple):
    """Record of the last epoch that ddflow wrote to a table, stored in the target of the table."""

    state: str
    """Id of the state that writes to the table."""
    output: str
    """Name of the output that the state writes to the table."""
    epoch: int
    """Number of the last epoch in the table."""
    digest: str
    """Digest of the manifest of the last epoch in the table."""


class TableShape(NamedTuple):
    """The columns and the key that the mode of a sink requires in the sink's table."""

    output: str
    """Name of the output that is written to the table."""
    schema: pa.Schema
    """Columns of the table."""
    key: tuple[str, ...] | None
    """Columns that identify the row to replace; None if the mode only adds rows."""
    certain: bool = False
    """Whether the columns of the key are never null."""
    had: frozenset[str] = frozenset()
    """Columns that earlier epochs wrote to the table."""


class TableChanges(NamedTuple):
    """The changes of one epoch for a target table."""

    gone: pa.Table | None
    """Keys of the rows to delete; None if rows are only added.  If the key has no columns, all rows are deleted."""
    rows: pa.Table
    """Rows to insert after the rows of ``gone`` are deleted."""
    net: int
    """Number of changed rows; 0 if there is nothing to write."""


class Staging(NamedTuple):
    """A way for several writers to add rows to one table.

    - ``stage``: a function that writes rows to files that no reader sees yet, and returns the file names as a few
      bytes. The function can be serialised and called in any process, even more than once. The table's vacuum deletes
      staged files that are never appended.
    - ``append``: a function that adds the staged rows in one transaction with the record, like `OpenSink.write`.
    """

    stage: Callable[[pa.Table], bytes]
    append: Callable[[Sequence[bytes], TargetRecord, TargetRecord | None], None]


class OpenSink(ABC):
    """An open connection to a target table."""

    look: Look = staticmethod(lambda rows: None)
    """Progress callback, set by the caller that opens the sink.

    A sink that writes in batches calls the function with the number of rows written since the last call.
    """

    @abstractmethod
    def written(self) -> TargetRecord | None:
        """Read the record in the target; return None if the target has no record."""

    @abstractmethod
    def missing(self) -> bool:
        """Return whether the table is missing.  The target may still have a record of a missing table."""

    def holds(self) -> None:  # noqa: B027 - some can store every type
        """Raise `SinkRefused` for columns that the target cannot store.  The method creates nothing."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the table if it is missing, and add new columns.

        If the table was dropped, `prepare` removes the record of that table before it creates a new table. Raises
        `SinkRefused` if an existing table does not fit the shape.
        """

    @abstractmethod
    def occupied(self) -> bool:
        """Return whether the table has rows."""

    @abstractmethod
    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch and its record ``now`` in one transaction.  If the target already has that record, do nothing.

        ``before``: the record that the target must have.  To correct the table without a new epoch, pass the same
        record as ``now`` and as ``before``.  Raises `SinkFailed`.  Raises `SinkAhead` if the record in the target is
        neither ``before`` nor ``now``, and `SinkRefused` if the table is missing.  After `SinkFailed` the target may or
        may not have the epoch.
        """

    def staging(self) -> Staging | None:
        """Return a way for several writers to add rows; None if one call must write the whole epoch.

        Raises `SinkFailed`.
        """
        return None

    def cancel(self) -> None:  # noqa: B027 - some cannot
        """Make a running `write` raise `SinkFailed`, if the target supports that.  Another thread calls the method."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Read all rows of the table, in the columns that its `TableShape` names."""

    def close(self) -> None:  # noqa: B027 - most hold no connection
        """Close the connections.  A second call has no effect."""


class TableSink(ABC):
    """The declaration of a sink.  ``kind``: the kind of sink in one word, stored in manifests."""

    kind: ClassVar[str]
    modes: ClassVar[tuple[Mode, ...]] = ("upsert", "changelog", "retract", "debezium", "updates")
    mode: Mode

    @property
    @abstractmethod
    def target(self) -> str:
        """Address of the table for manifests and messages, without credentials."""

    def needs(self) -> None:  # noqa: B027 - most need no library
        """Raise `MissingExtra` if a required library is not installed.  The method opens no connection."""

    @abstractmethod
    def open(self, shape: TableShape) -> OpenSink:
        """Connect to the target without creating anything.  Raises `SinkFailed`, `SinkRefused`."""


_TEXTS: Final[dict[type, dict[str, str]]] = {
    Source: {"kind": "feed", "unit": "rows", "target": "https://example.org/orders"},
    TableSink: {"kind": "shop", "mode": "upsert", "target": "shop.orders"},
}
"""Attributes of sources and sinks that must be texts, each with an example for error messages."""


def check_connector(asked: str, given: Any, base: type[Source | TableSink]) -> None:
    """Raise `SpecError` unless ``given`` is a source or sink with all required attributes.  O(attributes)."""
    if not isinstance(given, base):
        functions = "dd.sources" if base is Source else "dd.sinks"
        remedy = f"call one of {functions}, or pass an object of a subclass of {base.__name__}"
        raise SpecError(asked, f"it is {given!r:.99}, which is not a {base.__name__}", remedy)
    known = {*vars(type(given)), *getattr(given, "__dict__", {})} - {*dir(base)}
    for name, example in _TEXTS[base].items():
        value = getattr(given, name, None)
        if not isinstance(value, str) or not value:
            found = f"its {name!r} is {value!r:.99}"
            if value is None:
                slip = find_nearest_name(name, known)
                found = f"{type(given).__name__} has no {name!r}" + (f", but has {slip!r}" if slip else "")
            raise SpecError(asked, found, f"set it to a text, as in {name} = {example!r}")
    modes = getattr(given, "modes", ())
    if isinstance(modes, str) or not {*modes} <= {*TableSink.modes}:
        remedy = f"use a tuple of some of {list(TableSink.modes)}"
        raise SpecError(asked, f"its 'modes' are {modes!r:.99}", remedy)


def check_result_type(asked: str, call: str, made: Any, kind: type) -> None:
    """Raise `SpecError` if the method ``call`` of a source or sink returned an object of a wrong type."""
    if not isinstance(made, kind):
        found = "None" if made is None else f"a {type(made).__name__}"
        remedy = f"return an object of ddflow.connectors.api.{kind.__name__}"
        raise SpecError(asked, f"its {call}(...) returned {found}", remedy)


def check_polled_rows(asked: str, found: Polled, *, typed: bool) -> None:
    """Raise `SpecError` for rows that are not Arrow batches, and for a position that JSON cannot hold.  O(batches).

    ``typed``: whether the source declares the type of its positions.
    """
    for name, batches in found.rows.items():
        if not isinstance(batches, Sequence) or not all(isinstance(each, pa.RecordBatch) for each in batches):
            parts = sorted({type(each).__name__ for each in batches}) if isinstance(batches, Sequence) else "none"
            told = f"its poll(...) returned rows for {name!r} as a {type(batches).__name__} of {parts}"
            raise SpecError(asked, told, "return a list of pyarrow.RecordBatch for each input")
    try:
        if not typed:
            msgspec.json.encode(found.position)
    except (TypeError, ValueError) as error:
        told = f"its poll(...) returned the position {found.position!r:.99} ({error})"
        raise SpecError(asked, told, "return a value that JSON can hold: numbers, texts, lists, objects") from None

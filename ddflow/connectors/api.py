"""Define the protocol of connectors: a `Source` delivers rows with positions, a `TableSink` takes committed epochs.

A connector knows no engine, plan or step. A source returns the position after its rows. ddflow commits it with their
epoch, so after a crash reading continues after the last commit. A sink writes an epoch after its commit, in one
transaction of the target with a `TargetRecord`, so the next process to open the target reads which epoch it has.
Declarations (`dd.sources.*`, `dd.sinks.*`) can be copied and named in a manifest. Open objects hold connections.
ddflow opens a connector again after `SourceFailed` or `SinkFailed`, and after a rejected login
(`SourceNotLetIn`, `SinkNotLetIn`) if an earlier login succeeded. Any other error ends the run.

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
"""Functions that abort the connections opened during a call of a connector.  Another thread calls them."""


class SourceNotLetIn(UnreadableInput):
    """Rejected login to a source: a mistake at the start of a run, later an outage, as with a changed password."""


class SinkNotLetIn(SinkRefused):
    """Rejected login to a sink; see `SourceNotLetIn`."""


class UndeclaredColumn(NamedTuple):
    """A column that a source has, but the input does not declare.

    ``kind``: its type, None until a value shows it.  ``where``: the place of the column, for messages.
    """

    kind: pa.DataType | None
    where: str


class BatchStart(NamedTuple):
    """Start of a batch: a ``file``, and the number of its ``first`` row, counted like in the reader of the file."""

    file: str
    first: int


class Polled(NamedTuple):
    """Batch from a source."""

    rows: Mapping[str, Sequence[pa.RecordBatch]]
    """Batches by input, in order."""
    position: Any
    """Position after these rows, as plain JSON; None if no epoch may end here."""
    whole: frozenset[str] = frozenset()
    """Inputs that get their full contents in these rows."""
    beside: Mapping[str, Mapping[str, UndeclaredColumn]] = MappingProxyType({})
    """Undeclared columns by input.  Empty for messages, because their format finds such columns."""
    spots: Mapping[str, Sequence[BatchStart]] = MappingProxyType({})
    """Start of each batch by input, for errors.  Empty for messages, because each contains its own place."""
    orders: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    """Order values, by column, of the deletions in each input of ``whole``; by default the greatest of its rows."""


class OpenSource(ABC):
    """An open source."""

    reached: float | None = None
    """Unix time, in seconds: the source has delivered everything written until then.  None if unknown.

    It is the write time of the last rows, by the source's clock, or the time of the last look that found no more.
    """

    @abstractmethod
    def poll(self, room: int) -> Polled | None:
        """Return the next rows, about ``room`` bytes at most; None if no rows are available.  Waits briefly.

        Raises `SourceFailed`, `SourceChanged`, `UnreadableInput`, `SchemaMismatch`.
        """

    def keyed(  # noqa: B027 - most sources have no keys
        self, keys: Mapping[str, Sequence[str]], whole: Collection[str]
    ) -> None:
        """Note the key of each input, if rows of the same key replace each other.

        ``keys`` omits inputs that fold their rows otherwise.  ``whole``: the inputs that may get their full contents at
        once.  Called once, before the first poll.  Raises `UnreadableInput` if the source identifies rows by other
        columns.
        """

    def declared(self, new: Mapping[str, Collection[str]]) -> None:  # noqa: B027 - most learn of columns from rows
        """Note, by input, the declared columns that the state does not have yet.

        Called once, before the first poll.  Raises `UnreadableInput` for a column that the source does not have.
        """

    def note_guesses(self, columns: Mapping[str, Collection[str]]) -> None:  # noqa: B027 - most sources have types
        """Note, by input, the columns that a run added without a declaration.

        Their types are guesses, so the source converts no values for them. Called once, before the first poll.
        """

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the source will deliver no more rows."""

    @abstractmethod
    def lag(self) -> int | None:
        """Return the known but unread amount, in the source's ``unit``; None if unknown."""

    @property
    def waits(self) -> bool:
        """Whether the source delivers no more rows before a commit, so that an epoch can end now."""
        return False

    def acknowledge(self, position: Any) -> None:  # noqa: B027 - most sources ignore commits
        """Note a committed position, so that the source may drop earlier rows.  Called after the commit only."""

    def close(self) -> None:  # noqa: B027 - most hold no connection
        """Close the connections.  May be called twice."""


class Source(ABC):
    """The declaration of a source.

    ``kind``: one word, stored in manifests.  ``unit``: the unit of `OpenSource.lag`, a plural.  ``positions``: the type
    of its positions, for msgspec.  ``shared``: whether a state may read one target under several names; False for a
    source that a commit advances, such as a slot.
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
        """Describe a position as the text after "read up to"."""
        return json.dumps(position)

    @classmethod
    def placed(cls, place: int) -> int | str:
        """Describe the ``_position`` of an event in the terms of the source."""
        return place

    @classmethod
    def without(cls, position: Any, inputs: Collection[str]) -> Any:
        """Return a position without some dropped inputs.  Most sources return it unchanged."""
        return position

    def inputs(self, name: str) -> Sequence[str]:
        """Return the names of the inputs that the source feeds if attached as ``name``; most feed only ``name``."""
        return (name,)

    def needs(self) -> None:  # noqa: B027 - most need no library
        """Raise `MissingExtra` if a required library is not installed.  Connects to nothing."""

    @abstractmethod
    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Begin to read after a position.

        ``inputs``: the columns of each fed input.  The rows lack a column that the source no longer has.
        `Polled.beside` names columns of the source that are not among them.  ``position``: the one in the manifest;
        None for the beginning.  Raises `SourceFailed`, `SourceChanged`, `SpecError`.
        """


class TargetRecord(NamedTuple):
    """Record of the last written epoch, stored in a target beside its table."""

    state: str
    """Id of the state that writes to the table."""
    output: str
    """Name of the output in that state."""
    epoch: int
    """Number of the last epoch in the table."""
    digest: str
    """Digest of the manifest of that epoch."""


class TableShape(NamedTuple):
    """The table that a sink needs in its mode."""

    output: str
    """Name of the output that is written to the table."""
    schema: pa.Schema
    """Columns of the table."""
    key: tuple[str, ...] | None
    """Columns that identify a row to replace; None if the mode only adds rows."""
    certain: bool = False
    """Whether no column of the key is ever null."""
    had: frozenset[str] = frozenset()
    """Columns that earlier epochs wrote to the table."""


class TableChanges(NamedTuple):
    """The changes of one epoch for a target table."""

    gone: pa.Table | None
    """Keys whose rows are deleted; None if rows are only added.  A key without columns deletes all rows."""
    rows: pa.Table
    """Rows to add after the deletions."""
    net: int
    """Number of changed rows; 0 if nothing is to be written."""


class Staging(NamedTuple):
    """A way for several writers to add rows to one table.

    ``stage``: writes rows to files that no reader sees yet, and returns their names in a few bytes.  It can be
    serialised and called in any process, also more than once.  The table's own vacuum collects files that are never
    appended.  ``append``: adds the staged rows in one transaction with the record, like `OpenSink.write`.
    """

    stage: Callable[[pa.Table], bytes]
    append: Callable[[Sequence[bytes], TargetRecord, TargetRecord | None], None]


class OpenSink(ABC):
    """An open connection to a target table."""

    look: Look = staticmethod(lambda rows: None)
    """Progress callback, set by the caller that opens the sink.

    A sink that writes in batches calls it with the number of rows written since the last call.
    """

    @abstractmethod
    def written(self) -> TargetRecord | None:
        """Read the record in the target; None if it has none."""

    @abstractmethod
    def missing(self) -> bool:
        """Return whether the table is missing.  The target may still have a record of it."""

    def holds(self) -> None:  # noqa: B027 - some can store every type
        """Raise `SinkRefused` for columns that such a table cannot store.  Creates nothing."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the table if it is missing, and add new columns.  Raises `SinkRefused` for another shape.

        Removes the record of a dropped table before it creates a new one, so a new table has no record.
        """

    @abstractmethod
    def occupied(self) -> bool:
        """Return whether the table has rows."""

    @abstractmethod
    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch, in one transaction with ``now``.  Do nothing if the target has ``now`` already.

        ``before``: the record that the target must have; ``now`` itself to correct the table within one epoch. Raises
        `SinkFailed`, `SinkAhead` for another record, and `SinkRefused` if the table is missing.  After `SinkFailed` the
        target may or may not have the epoch.
        """

    def staging(self) -> Staging | None:
        """Return a way for several writers to add rows; None if one call must write an epoch.  Raises `SinkFailed`."""
        return None

    def cancel(self) -> None:  # noqa: B027 - some cannot
        """Make a running `write` raise `SinkFailed`, if the target can.  Called from another thread."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Read all rows of the table, in the columns of its shape."""

    def close(self) -> None:  # noqa: B027 - most hold no connection
        """Close the connections.  May be called twice."""


class TableSink(ABC):
    """The declaration of a sink.  ``kind``: one word, stored in manifests."""

    kind: ClassVar[str]
    modes: ClassVar[tuple[Mode, ...]] = ("upsert", "changelog", "retract", "debezium", "updates")
    mode: Mode

    @property
    @abstractmethod
    def target(self) -> str:
        """Address of the table for manifests and messages, without credentials."""

    def needs(self) -> None:  # noqa: B027 - most need no library
        """Raise `MissingExtra` if a required library is not installed.  Connects to nothing."""

    @abstractmethod
    def open(self, shape: TableShape) -> OpenSink:
        """Connect to the target.  Creates nothing.  Raises `SinkFailed`, `SinkRefused`."""


_TEXTS: Final[dict[type, dict[str, str]]] = {
    Source: {"kind": "feed", "unit": "rows", "target": "https://example.org/orders"},
    TableSink: {"kind": "shop", "mode": "upsert", "target": "shop.orders"},
}
"""Text attributes of each kind of declaration, each with an example."""


def check_connector(asked: str, given: Any, base: type[Source | TableSink]) -> None:
    """Raise `SpecError` unless ``given`` is a source or sink with every attribute.  O(attributes)."""
    if not isinstance(given, base):
        functions = "dd.sources" if base is Source else "dd.sinks"
        remedy = f"call one of {functions}, or give an object of your own class of {base.__name__}"
        raise SpecError(asked, f"it is {given!r:.99}, which is no {base.__name__}", remedy)
    known = {*vars(type(given)), *getattr(given, "__dict__", {})} - {*dir(base)}
    for name, example in _TEXTS[base].items():
        value = getattr(given, name, None)
        if not isinstance(value, str) or not value:
            found = f"its {name!r} is {value!r:.99}"
            if value is None:
                slip = find_nearest_name(name, known)
                found = f"{type(given).__name__} has no {name!r}" + (f" but {slip!r}" if slip else "")
            raise SpecError(asked, found, f"give it as text, as in {name} = {example!r}")
    modes = getattr(given, "modes", ())
    if isinstance(modes, str) or not {*modes} <= {*TableSink.modes}:
        remedy = f"give a tuple of some of {list(TableSink.modes)}"
        raise SpecError(asked, f"its 'modes' are {modes!r:.99}", remedy)


def check_result_type(asked: str, call: str, made: Any, kind: type) -> None:
    """Raise `SpecError` if a method of a source or sink returned an object of a wrong type."""
    if not isinstance(made, kind):
        found = "None" if made is None else f"a {type(made).__name__}"
        remedy = f"return an object of ddflow.connectors.api.{kind.__name__}"
        raise SpecError(asked, f"its {call}(...) returned {found}", remedy)


def check_polled_rows(asked: str, found: Polled, *, typed: bool) -> None:
    """Raise `SpecError` for rows that are no batches, and for a position outside JSON.  O(batches).

    ``typed``: whether the source declares the type of its positions.
    """
    for name, batches in found.rows.items():
        if not isinstance(batches, Sequence) or not all(isinstance(each, pa.RecordBatch) for each in batches):
            parts = sorted({type(each).__name__ for each in batches}) if isinstance(batches, Sequence) else "none"
            told = f"its poll(...) gave rows for {name!r} as a {type(batches).__name__} of {parts}"
            raise SpecError(asked, told, "give a list of pyarrow.RecordBatch for each input")
    try:
        if not typed:
            msgspec.json.encode(found.position)
    except (TypeError, ValueError) as error:
        told = f"its poll(...) gave the position {found.position!r:.99} ({error})"
        raise SpecError(asked, told, "give what JSON can hold: numbers, texts, lists, objects") from None

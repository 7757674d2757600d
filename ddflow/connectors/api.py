"""The seam of what runs beside an engine: a `Source` brings rows with positions, a `TableSink` takes committed epochs.

Invariant: a connector knows no engine, no plan and no step. A source is opened at a position and says, with the rows
it brings, the position after them; that is committed with the epoch that the rows made, so reading goes on behind the
last commit whatever died. A sink takes an epoch after its commit, in its target's own transaction, together with a
`TargetRecord`: whoever opens it next sees which epoch it has. What is declared (`dd.sources.*`, `dd.sinks.*`) can be
copied and named in a manifest; what is open holds connections. A connector is a file or a folder with both.

What fails for a while raises `SourceFailed` or `SinkFailed`, after which both are opened anew; all else ends a run, but
for a server that lets nobody in any more (`SourceNotLetIn`, `SinkNotLetIn`).

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
"""Takes, while a connector is asked, how to break off each connection that it opens.  Called from another thread."""


class SourceNotLetIn(UnreadableInput):
    """Rejected login to a source: a mistake at the start of a run, later an outage, as after a new password."""


class SinkNotLetIn(SinkRefused):
    """Rejected login to a sink; see `SourceNotLetIn`."""


class UndeclaredColumn(NamedTuple):
    """A column that a source has and was not asked for.  ``kind``: its type, None while it has no value that tells.
    ``where``: it was found, for people."""

    kind: pa.DataType | None
    where: str


class BatchStart(NamedTuple):
    """Where a batch begins: in a ``file``, at its row ``first``, as its reader counts them."""

    file: str
    first: int


class Polled(NamedTuple):
    """Batch from a source."""

    rows: Mapping[str, Sequence[pa.RecordBatch]]
    """By input, in order."""
    position: Any
    """After these rows, plain JSON; None where no epoch may end yet."""
    whole: frozenset[str] = frozenset()
    """Inputs whose rows are all that they hold."""
    beside: Mapping[str, Mapping[str, UndeclaredColumn]] = MappingProxyType({})
    """By input, the columns that stand beside those of these rows; of messages the format tells them."""
    spots: Mapping[str, Sequence[BatchStart]] = MappingProxyType({})
    """By input, where each batch stands, for errors; of messages each says it itself."""
    orders: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    """By input that is whole, the order of its deletions, by column; else it is the greatest one of its rows."""


class OpenSource(ABC):
    """A source, being read."""

    reached: float | None = None
    """What was written until then was given, in seconds since 1970: when what it gave last was written, as the source
    has it, or when it looked and found no more.  None where that is not known."""

    @abstractmethod
    def poll(self, room: int) -> Polled | None:
        """Return the next rows, about ``room`` bytes at most; None if there are none yet.  Waits briefly.

        Raises `SourceFailed`, `SourceChanged`, `UnreadableInput`, `SchemaMismatch`.
        """

    def keyed(  # noqa: B027 - most know no keys
        self, keys: Mapping[str, Sequence[str]], whole: Collection[str]
    ) -> None:
        """Note, by input, the key that replaces its rows; inputs that fold their rows otherwise are left out.

        ``whole``: the inputs that may get their full contents at once.  Called once, before the first poll.  Raises
        `UnreadableInput` if the source identifies rows by other columns.
        """

    def declared(self, new: Mapping[str, Collection[str]]) -> None:  # noqa: B027 - most learn of columns from rows
        """Note, by input, the columns that the flow declares and the state does not have yet.

        Called once, before the first poll.  Raises `UnreadableInput` for a column that a table does not have.
        """

    def note_guesses(self, columns: Mapping[str, Collection[str]]) -> None:  # noqa: B027 - most sources have types
        """Note, by input, the columns that a run added without a declaration.

        Their types are guesses, so the source converts no values for them. Called once, before the first poll.
        """

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether nothing will come any more."""

    @abstractmethod
    def lag(self) -> int | None:
        """Return how much is known but not read yet, in the source's ``unit``; None if unknown."""

    @property
    def waits(self) -> bool:
        """Whether it gives nothing more before a commit, and an epoch need not wait for it."""
        return False

    def acknowledge(self, position: Any) -> None:  # noqa: B027 - most have nobody to tell
        """Note a committed position: the source may drop earlier rows.  Never called before its commit."""

    def close(self) -> None:  # noqa: B027 - most keep nothing
        """Let go of connections.  Twice is harmless."""


class Source(ABC):
    """Where rows come from, as it is declared.  ``kind``: one word, in manifests.  ``unit``: what `OpenSource.lag`
    counts, a plural.  ``positions``: the type of its positions, as msgspec reads them.  ``shared``: whether a state may
    read one target under several names; what is moved on behind a commit is read under one."""

    kind: ClassVar[str]
    unit: ClassVar[str] = "rows"
    shared: ClassVar[bool] = True
    positions: ClassVar[Any] = Any

    @property
    @abstractmethod
    def target(self) -> str:
        """Where that is, as manifests and messages name it; never with credentials."""

    @classmethod
    def said(cls, position: Any) -> str:
        """Describe one of its ``positions`` as text after "read up to"."""
        return json.dumps(position)

    @classmethod
    def placed(cls, place: int) -> int | str:
        """Describe the ``_position`` of an event in the terms of the source."""
        return place

    @classmethod
    def without(cls, position: Any, inputs: Collection[str]) -> Any:
        """Return a position of its ``positions`` without some inputs that were dropped.  Most return it unchanged."""
        return position

    def inputs(self, name: str) -> Sequence[str]:
        """Return the names of the inputs that it feeds if attached as ``name``; for most that is the only one."""
        return (name,)

    def needs(self) -> None:  # noqa: B027 - most need no library
        """Raise `MissingExtra` if a library that it needs is not installed.  Connects to nothing."""

    @abstractmethod
    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Begin to read.

        ``inputs``: the columns of each input that it feeds.  One that it has no more is left out of its rows; others
        are named `beside` them.  ``position``: that a manifest has; None for the beginning.  Raises `SourceFailed`,
        `SourceChanged`, `SpecError`.
        """


class TargetRecord(NamedTuple):
    """Record of the last epoch, stored in a target beside its table."""

    state: str
    """The state that writes to the table."""
    output: str
    """The output of it."""
    epoch: int
    """The last epoch that is in the table."""
    digest: str
    """Of that epoch's manifest."""


class TableShape(NamedTuple):
    """A table as a mode makes it."""

    output: str
    """The output that goes to it."""
    schema: pa.Schema
    """Its columns."""
    key: tuple[str, ...] | None
    """By which rows are replaced; None: rows are only added."""
    certain: bool = False
    """Whether no column of the key is ever null."""
    had: frozenset[str] = frozenset()
    """The columns that the table was given with earlier epochs."""


class TableChanges(NamedTuple):
    """An epoch as a target takes it."""

    gone: pa.Table | None
    """The keys whose rows go, None where rows are only added; by a key of no columns all go."""
    rows: pa.Table
    """Rows that are added then."""
    net: int
    """How many rows changed; 0: there is nothing to write."""


class Staging(NamedTuple):
    """How rows are added to a table by many.

    ``stage``: writes rows where no reader sees them, and says where, in a few bytes.  It can be pickled, and may be
    called anywhere, again, and in vain: what is not appended is garbage of the table's, as its own vacuum collects it.
    ``append``: adds what was staged, in one transaction with the record; as `OpenSink.write`."""

    stage: Callable[[pa.Table], bytes]
    append: Callable[[Sequence[bytes], TargetRecord, TargetRecord | None], None]


class OpenSink(ABC):
    """A target's table, connected."""

    look: Look = staticmethod(lambda rows: None)
    """For progress, set by its opener: called with the number of rows that were written since its last call, by a sink
    that writes them piece by piece."""

    @abstractmethod
    def written(self) -> TargetRecord | None:
        """Read the record in the target; None if it has none."""

    @abstractmethod
    def missing(self) -> bool:
        """Return whether there is no table, though there may be a record of one."""

    def holds(self) -> None:  # noqa: B027 - some hold whatever there is
        """Raise `SinkRefused` for columns that no such table can hold.  Nothing is made."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the table if it is missing, and add new columns.  Raises `SinkRefused` for another shape.

        A new table has no record: the record of a dropped table is removed first.
        """

    @abstractmethod
    def occupied(self) -> bool:
        """Return whether the table has rows."""

    @abstractmethod
    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch, in one transaction with ``now``.  Do nothing if the target has ``now`` already.

        ``before``: the record that it must have until then; ``now`` itself for a difference in the same epoch. Raises
        `SinkFailed`, after which the epoch may be written, `SinkAhead` for another record, and `SinkRefused` if the
        table is missing.
        """

    def staging(self) -> Staging | None:
        """Return how several writers may add rows; None if one call must write an epoch.  Raises `SinkFailed`."""
        return None

    def cancel(self) -> None:  # noqa: B027 - some cannot
        """Make a running `write` raise `SinkFailed`, if the target can.  Called from another thread."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Read all rows of the table, in the columns of its shape."""

    def close(self) -> None:  # noqa: B027 - most keep nothing
        """Let go of connections.  Twice is harmless."""


class TableSink(ABC):
    """Where the epochs of an output go, as it is declared.  ``kind``: one word, in manifests."""

    kind: ClassVar[str]
    modes: ClassVar[tuple[Mode, ...]] = ("upsert", "changelog", "retract", "debezium", "updates")
    mode: Mode

    @property
    @abstractmethod
    def target(self) -> str:
        """Where that is, table included, as manifests and messages name it; never with credentials."""

    def needs(self) -> None:  # noqa: B027 - most need no library
        """Raise `MissingExtra` if a library that it needs is not installed.  Connects to nothing."""

    @abstractmethod
    def open(self, shape: TableShape) -> OpenSink:
        """Connect.  Nothing is made yet.  Raises `SinkFailed`, `SinkRefused`."""


_TEXTS: Final[dict[type, dict[str, str]]] = {
    Source: {"kind": "feed", "unit": "rows", "target": "https://example.org/orders"},
    TableSink: {"kind": "shop", "mode": "upsert", "target": "shop.orders"},
}
"""What a declaration says as text, each with an example."""


def check_connector(asked: str, given: Any, base: type[Source | TableSink]) -> None:
    """Raise `SpecError` unless it is a source or sink with every attribute.  O(attributes)."""
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
    """Raise `SpecError` if a source or sink made something of a wrong type."""
    if not isinstance(made, kind):
        found = "None" if made is None else f"a {type(made).__name__}"
        remedy = f"return an object of ddflow.connectors.api.{kind.__name__}"
        raise SpecError(asked, f"its {call}(...) returned {found}", remedy)


def check_polled_rows(asked: str, found: Polled, *, typed: bool) -> None:
    """Raise `SpecError` for rows instead of batches, and for a position that is no JSON.  O(batches).

    ``typed``: whether the source tells the type of its positions.
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

"""Read a source of a run from its committed position, retry failures, and describe the position.

Guarantees: the rows of an epoch always end at a position where an epoch may end. Later rows are held until the source
reaches the next position where an epoch may end. The reader acknowledges a position to the source only after the epoch
with this position is committed. If a new column appears, reading stops before the first rows with this column, so no
value is lost. Descriptions of positions contain no credentials.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic, time
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from ddflow.connectors.api import (
    BatchStart,
    OpenSource,
    Polled,
    Source,
    SourceNotLetIn,
    UndeclaredColumn,
    check_polled_rows,
    check_result_type,
)
from ddflow.connectors.formats.base import Format, wrap_messages
from ddflow.connectors.formats.messages import POSITION
from ddflow.connectors.sources import describe_event_position, describe_position
from ddflow.engine.run.retry import Retry
from ddflow.errors import ErrorText, EvolveFix, SourceFailed, SpecError
from ddflow.metrics import SourceLag
from ddflow.plan.inputs.input import Binding
from ddflow.storage.epochs import AttachedSource

ReaderState = Literal["closed", "failing", "new columns", "reading", "waiting", "ended"]
"""The states of a reader. "closed": the next poll opens the source and may take a long time.

"failing": after a pause, a poll opens the source again. "new columns": new columns must be added to the plan before the
next poll. "reading": the source can return rows. "waiting": the source returns no rows before the next commit. "ended":
the source will return no more rows.
"""


class CallRows(NamedTuple):
    """The rows for one call of an engine.

    ``spots``: the position of each batch in a file, and the number of its rows. ``whole``: whether the rows are full
    contents of one input. ``order``: the order of the deletions by full contents, if the source has an order.
    """

    rows: dict[str, list[pa.RecordBatch]]
    spots: list[tuple[BatchStart, int]]
    whole: bool = False
    order: Mapping[str, int] | None = None


class SourceReader:
    """Reads one source.

    ``name``: the name of the source in the run. ``bounds``: the bound inputs that it feeds, by name. ``before``: the
    record of the source in the state. ``declared``: for each input, the declared columns that the state does not have
    yet.

    >>> reader = SourceReader("people", None, {}, None)
    >>> reader.state, reader.has_uncommitted_polls, reader.gathered
    ('closed', False, 0)
    """

    def __init__(
        self,
        name: str,
        source: Any,
        bounds: Mapping[str, Binding],
        before: AttachedSource | None,
        declared: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.name, self.source, self.bounds = name, source, bounds
        self.position = self.committed = None if before is None else before.position
        self.declared = {each: columns for each, columns in declared.items() if each in bounds}
        self.left_out: dict[str, tuple[str, ...]] = {} if before is None else dict(before.left_out)
        """For each input, the undeclared columns that the first rows had. The reader ignores these columns."""
        self.new_columns: dict[str, dict[str, UndeclaredColumn]] = {}
        """For each input, the columns that appeared later and must be added to the plan.

        If there are any, the reader reads nothing until `update_bindings` is called.
        """
        self._valueless: dict[str, set[str]] = {}
        """For each input, the columns of messages that have contained only nulls so far."""
        self.taken, self._unfinished = list[Polled](), list[Polled]()
        """The results of polls for the next epoch, followed by the results of later polls.

        Rows of later polls are held until an epoch may end after these rows.
        """
        self.gathered = 0
        """The number of rows in all poll results that are not committed yet."""
        self.retry = Retry(f"the source {name!r}")
        self.last_rows = monotonic()
        """The clock time of the last poll that returned rows."""
        self.on_open: Callable[[], object] = lambda: None
        """The function to call after the source is opened, before the first poll."""
        self._open: OpenSource | None = None
        self.last_lag: int | None = None
        """The last known lag in the unit of the source; None if no lag is known."""
        self._reached = None if before is None or before.reached is None else before.reached / 1000
        """The last known value of `OpenSource.reached`, which is kept while the source fails."""

    @property
    def state(self) -> ReaderState:
        """The state of the reader, which tells what the next poll can return."""
        if self.new_columns:
            return "new columns"
        if self.retry.failing is not None:
            return "failing"
        if self._open is None:
            return "closed"
        if self._open.ended:
            return "ended"
        return "waiting" if self._open.waits else "reading"

    @property
    def has_uncommitted_polls(self) -> bool:
        """Whether there are poll results for the next epoch, with rows or only with positions."""
        return bool(self.taken)

    @property
    def has_unfinished_rows(self) -> bool:
        """Whether rows are held because the source has not reached a position where an epoch may end."""
        return bool(self._unfinished)

    @property
    def is_reading_first_copy(self) -> bool:
        """Whether the source is reading its first copy. A first copy is a single epoch."""
        return self.has_unfinished_rows and self.committed is None

    def measure_lag(self) -> SourceLag:
        """Ask the source how far behind the reader is.

        If the source is busy or does not know how far behind the reader is, use the last known value.
        """
        known, now = None, time()
        if self._open is not None and not self.has_unfinished_rows and not self.new_columns:
            with self._watch_request():
                known = self._open.lag()
            reached = now if known == 0 else self._open.reached
            self.last_lag = self.last_lag if known is None else known
            # If a source was once read to its end, an old row that arrives later does not increase the lag.
            self._reached = max(filter(None, (self._reached, reached)), default=None)
        seconds = None if self._reached is None else max(now - self._reached, 0.0)
        return SourceLag(self.last_lag, self.source.unit, self.retry.failing is not None, seconds, self.gathered)

    def make_record(self) -> AttachedSource:
        """Make the record of the source for the next manifest."""
        self.measure_lag()
        # A source with a wrong clock may report an impossible time, but a manifest needs a valid time.
        reached = None if self._reached is None else int(min(max(self._reached, 0.0), time()) * 1000)
        return AttachedSource(self.source.kind, self.source.target, self.position, self.left_out, reached)

    def poll(self, room: int) -> Polled | None:
        """Poll the source. Return None if there are no rows, if the source fails, or if the rows have a new column.

        Raises the errors of `OpenSource.poll`.
        """
        now = monotonic()
        if self.new_columns or not self.retry.is_due(now):
            return None
        try:
            with self._watch_request():
                found = (self._open or self._open_source()).poll(room)
        except (SourceFailed, SourceNotLetIn) as error:
            self.retry.record_failure(error, now, monotonic() - now)
            self._drop_unfinished_rows()
            self.close()
            return None
        if found is not None:
            check_result_type(f"the source {self.name!r}", "poll", found, Polled)
            check_polled_rows(f"the source {self.name!r}", found, typed=self.source.positions is not Any)
        # If a poll result has no position and the next poll fails, the rows of the result are read again. So a result
        # without a position does not end an outage.
        self.retry.record_success(now, whole=found is None or found.position is not None)
        return None if found is None else self._accept_polled_rows(found, now)

    def _open_source(self) -> OpenSource:
        """Open the source at the reader's position. Raises the errors of `Source.open`."""
        schemas = {name: bound.schema for name, bound in self.bounds.items()}
        made: OpenSource = self.source.open(schemas, self.position)
        check_result_type(f"the source {self.name!r}", "open", made, OpenSource)
        self._open = made
        made.declared(self.declared)
        made.note_guesses({name: bound.guessed for name, bound in self.bounds.items()})
        keys = {name: bound.replacement_key for name, bound in self.bounds.items() if bound.replacement_key is not None}
        made.keyed(keys, [name for name in keys if self.bounds[name].spec.time is None])
        self.on_open()
        return made

    def _accept_polled_rows(self, found: Polled, now: float) -> Polled | None:
        """Store a poll result for the next epoch. Return None if the rows have a new column."""
        self.last_rows = now
        self._find_new_columns(found)
        if self.new_columns:
            self._drop_unfinished_rows()
            return None
        self._unfinished.append(found)
        self.gathered += count_rows([found])
        if found.position is not None:
            self.taken += self._unfinished
            self._unfinished, self.position = [], found.position
        return found

    def _find_new_columns(self, found: Polled) -> None:
        """Record the undeclared columns of rows.

        Undeclared columns of the first rows are ignored, and undeclared columns of later rows are new columns.
        """
        for name, bound in self.bounds.items():
            if name in found.beside:
                fresh = self._list_new_columns(name, found.beside[name])
                self._record_new_columns(name, {column: found.beside[name][column] for column in fresh})
            if bound.format is not None:
                for batch in found.rows.get(name, ()):
                    self._record_message_columns(name, bound.format, pa.Table.from_batches([batch]))

    def _record_message_columns(self, name: str, format: Format, given: pa.Table) -> None:
        """Record undeclared columns inside messages, as `_find_new_columns` records undeclared columns of rows."""
        messages, valueless = wrap_messages(format, given, repr(name)), self._valueless.setdefault(name, set())
        known = (*self.bounds[name].schema.names, *self.left_out.get(name, ()))
        # `shown` has all columns of the first messages, but only unknown columns of later messages.
        shown = format.columns(messages, {*known, *valueless} if name in self.left_out else ())
        asked = [*(self._list_new_columns(name, shown) if shown else ()), *valueless]
        kinds = format.kinds(messages, asked) if asked else {}
        if kinds:
            shown = format.columns(messages, known)
            self._record_new_columns(
                name,
                {
                    c: UndeclaredColumn(kinds[c], str(messages.locate_message(row)))
                    for c, row in shown.items()
                    if c in kinds
                },
            )
        self._valueless[name] = {column for column in asked if column not in kinds}

    def _list_new_columns(self, name: str, there: Mapping[str, Any]) -> list[str]:
        """List the undeclared columns that are new columns.

        For the first rows of an input, list no columns, and ignore the undeclared columns of these rows from now on.
        """
        beside = [column for column in there if column not in self.bounds[name].schema.names]
        left_out = self.left_out.setdefault(name, tuple(beside))
        return [column for column in beside if column not in left_out]

    def _record_new_columns(self, name: str, columns: Mapping[str, UndeclaredColumn]) -> None:
        typed = {column: each for column, each in columns.items() if each.kind is not None}
        if typed:
            self.new_columns[name] = {**typed, **self.new_columns.get(name, {})}

    def update_bindings(self, bounds: Mapping[str, Binding]) -> None:
        """Continue after a commit. The columns of the inputs may have changed."""
        before, self.bounds, self.new_columns = self.bounds, {name: bounds[name] for name in self.bounds}, {}
        if self.bounds != before:
            self.close()

    def group_rows_into_calls(self) -> Iterator[CallRows]:
        """Group the rows of the next epoch into calls.

        A call has either batches that all have the same columns, or the full contents of one input.
        """
        ready = CallRows({}, [])
        for taken in self.taken:
            for name, batches in taken.rows.items():
                spots = [(spot, b.num_rows) for spot, b in zip(taken.spots.get(name, ()), batches, strict=False)]
                if name in taken.whole:
                    yield from (ready,) if ready.rows else ()
                    yield CallRows({name: list(batches)}, spots, whole=True, order=taken.orders.get(name))
                    ready = CallRows({}, [])
                    continue
                for n, batch in enumerate(batches):
                    if ready.rows.get(name) and not ready.rows[name][0].schema.equals(batch.schema):
                        yield ready
                        ready = CallRows({}, [])
                    ready.rows.setdefault(name, []).append(batch)
                    ready.spots.extend(spots[n : n + 1])
        yield from (ready,) if ready.rows else ()

    def acknowledge_commit(self) -> None:
        """Acknowledge to the source that its position was committed."""
        self.taken, self.committed, self.gathered = [], self.position, count_rows(self._unfinished)
        if self._open is not None:
            with self._watch_request():
                self._open.acknowledge(self.committed)

    def _drop_unfinished_rows(self) -> None:
        """Drop the rows that are held until the source reaches a position where an epoch may end.

        The source will return these rows again.
        """
        self._unfinished, self.gathered = [], count_rows(self.taken)

    def close(self) -> None:
        """Close the source."""
        if self._open is not None:
            with self._watch_request():
                self._open.close()
            self._open = None

    def _watch_request(self) -> AbstractContextManager[None]:
        """Watch a request to the source. If the request is slow, the run can log and cancel it."""
        return self.retry.watch_call("has not answered")


def count_rows(polled: Iterable[Polled]) -> int:
    """Count the rows of all batches in poll results."""
    return sum(batch.num_rows for each in polled for batches in each.rows.values() for batch in batches)


def describe_new_columns(columns: Mapping[str, UndeclaredColumn]) -> str:
    """Describe new columns in text for users."""
    return ", ".join(f"the column {name!r} ({each.kind}), first in {each.where}" for name, each in columns.items())


class SourceFeed(NamedTuple):
    """The source that delivers the rows of an input.

    ``source``: the name of the source. ``kind``, ``target``, ``position``: as in `AttachedSource`.

    >>> print(SourceFeed("shop", "kafka", "kafka://b:1/shop", {"offsets": {"0": 17}, "cluster": "", "topic_id": ""}))
    the source 'shop': kafka kafka://b:1/shop, read up to offset 17 of partition 0
    """

    source: str
    kind: str
    target: str
    position: Any

    def __str__(self) -> str:
        read = describe_position(self.kind, self.position)
        return f"the source {self.source!r}: {self.kind} {self.target}, read up to {read}"

    def describe_order(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return an order whose position column is written as the source system writes positions."""
        place = row.get(POSITION)
        return dict(row) if place is None else {**row, POSITION: describe_event_position(self.kind, place)}

    def to_dict(self) -> dict[str, Any]:
        """Convert the object to plain values, and add a text that describes the position."""
        return {**self._asdict(), "read_up_to": describe_position(self.kind, self.position)}


def find_source_feed(sources: Mapping[str, AttachedSource], input: str) -> SourceFeed | None:
    """Find the source of an input. Return None if the state has no source for the input. O(sources)."""
    for name, of in sources.items():
        if name == input or input in of.left_out:
            return SourceFeed(name, of.kind, of.target, of.position)
    return None


def find_source_record(
    sources: Mapping[str, AttachedSource], name: str, source: Source, inputs: Collection[str], where: str
) -> AttachedSource | None:
    """Return the record of the source ``name`` in the state. Return None if the source is new. O(sources + inputs).

    ``inputs``: the inputs of the plan. Raises `SpecError` if the source has a kind that differs from its kind in the
    state. Raises `SpecError` if the source has fewer inputs than before, because the changes of the missing inputs
    would be lost. Raises `SpecError` if the state reads the source under another name. Raises `SpecError` if the state
    already reads an input from another source of the same kind, because deleted rows would stay.
    """
    before, asked = sources.get(name), f"the source {name!r}"
    for each in () if source.shared else source.inputs(name):
        by = find_source_feed({at: of for at, of in sources.items() if at != name and of.kind == source.kind}, each)
        if by is not None and by.target != source.target:
            found = f"this state reads {each!r} as {by.source!r}, from {by.target}"
            raise SpecError(asked, found, f"let {by.source!r} read it, or create a new state")
    if before is None:
        for other, of in sources.items():
            if not source.shared and (of.kind, of.target) == (source.kind, source.target):
                found = f"this state reads {of.target} as {other!r}, up to {describe_position(of.kind, of.position)}"
                raise SpecError(asked, found, f"use the name {other!r} for it, with any inputs")
        return None
    if before.kind != source.kind:
        found = f"its position is of kind {before.kind}, but this source is of kind {source.kind}"
        raise SpecError(asked, found, "attach the previous source, or create a new state")
    if gone := [each for each in before.left_out if each in inputs and each not in source.inputs(name)]:
        found = f"it feeds {' and '.join(map(repr, gone))} in this state, so their changes would be lost"
        drop = EvolveFix(state=where, drop_inputs=gone)
        raise SpecError(
            asked, found, ErrorText("pass it with all its inputs, or drop the inputs that you no longer need: ", drop)
        )
    return before

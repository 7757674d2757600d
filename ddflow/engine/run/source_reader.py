"""Read one source of a run from its committed position, with retries, and describe how far it was read.

Guarantees: rows taken since the last epoch end where an epoch may end, and later rows wait. The source hears of a
position only after its epoch is committed. A new column stops the read before the rows that first carry it, so no
value is lost. Descriptions come from the manifest alone and hold no credentials.

>>> inlet = Inlet("people", None, {}, None)
>>> inlet.moved, inlet.news, inlet.gathered
(False, {}, 0)
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic, time
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from ddflow.connectors.api import Beside, OpenSource, Polled, Source, SourceNotLetIn, Spot, check_made, check_polled
from ddflow.connectors.formats.base import Format, messages_of
from ddflow.connectors.formats.messages import POSITION
from ddflow.connectors.sources import placed, said
from ddflow.engine.run.retry import Retry
from ddflow.errors import Evolve, Phrase, SchemaMismatch, SourceFailed, SpecError
from ddflow.metrics import SourceLag
from ddflow.plan.inputs.input import Binding
from ddflow.storage.epochs import Attached


class CallRows(NamedTuple):
    """Rows for one call of an engine.

    ``spots``: the place of each batch in a file, and its number of rows. ``whole``: whether they are full contents of
    their only input; ``order``: of the deletions then, if the source has one.
    """

    rows: dict[str, list[pa.RecordBatch]]
    spots: list[tuple[Spot, int]]
    whole: bool = False
    order: Mapping[str, int] | None = None


class Inlet:
    """``of``: the source, attached as ``name``, for inputs that are ``bounds``, from where ``before`` says on.

    ``new``: by input, the columns that are declared and not in the state yet.
    """

    def __init__(
        self,
        name: str,
        of: Any,
        bounds: Mapping[str, Binding],
        before: Attached | None,
        new: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.name, self.of, self.bounds = name, of, bounds
        self.position = self.committed = None if before is None else before.position
        self.new = {each: columns for each, columns in new.items() if each in bounds}
        self.left_out: dict[str, tuple[str, ...]] = {} if before is None else dict(before.left_out)
        """By input, the columns that stood beside the first rows."""
        self.news: dict[str, dict[str, Beside]] = {}
        """By input, the columns that are new; until they are `evolved` nothing more is read."""
        self._waiting: dict[str, set[str]] = {}
        """By input, the columns in messages that had no value yet."""
        self.taken, self._open = list[Polled](), list[Polled]()
        self.gathered = 0
        """Rows of both."""
        self.retry = Retry(f"the source {name!r}")
        self.heard = monotonic()
        """When rows came last."""
        self.on_open: Callable[[], object] = lambda: None
        """Called when the source is open, before it is read."""
        self._source: OpenSource | None = None
        self._lag: int | None = None
        """The last known lag."""
        self._reached = None if before is None or before.reached is None else before.reached / 1000
        """As `OpenSource.reached`, also of one that fails now."""

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """By input, the columns that it is read in."""
        return {name: bound.schema for name, bound in self.bounds.items()}

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """The key by which an input's rows are replaced, by input, if they are."""
        return {name: bound.replaces for name, bound in self.bounds.items() if bound.replaces is not None}

    @property
    def moved(self) -> bool:
        """Whether something was taken since the last commit."""
        return bool(self.taken)

    @property
    def within(self) -> bool:
        """Whether rows came behind which no epoch may end."""
        return bool(self._open)

    @property
    def copying(self) -> bool:
        """Whether a first copy is read, which is one epoch."""
        return self.within and self.committed is None

    @property
    def opens(self) -> bool:
        """Whether the next poll is the first, which may last."""
        return self._source is None and self.retry.failing is None

    @property
    def ended(self) -> bool:
        """Whether nothing will come any more."""
        return self._source is not None and self.retry.failing is None and self._source.ended

    @property
    def waits(self) -> bool:
        """Whether nothing comes before a commit."""
        return self._source is not None and self.retry.failing is None and self._source.waits

    @property
    def unknown(self) -> bool:
        """Whether the source has never said how many rows it has."""
        return self._lag is None

    def lag(self) -> SourceLag:
        """Ask the source for the amount that it has not given yet; during its answer, repeat the last known amount."""
        known, now = None, time()
        if self._source is not None and not self.within and not self.news:
            with self._watch_answer():
                known = self._source.lag()
            reached = now if known == 0 else self._source.reached
            self._lag = self._lag if known is None else known
            # An old row in a source that was read to its end makes the rest no older.
            self._reached = max(filter(None, (self._reached, reached)), default=None)
        seconds = None if self._reached is None else max(now - self._reached, 0.0)
        return SourceLag(self._lag, self.of.unit, self.retry.failing is not None, seconds, self.gathered)

    def attached(self) -> Attached:
        """Make the record of the source for the next manifest."""
        self.lag()
        # A source whose clock is wrong says any time; a manifest takes no time that is none.
        reached = None if self._reached is None else int(min(max(self._reached, 0.0), time()) * 1000)
        return Attached(self.of.kind, self.of.target, self.position, self.left_out, reached)

    def poll(self, room: int) -> Polled | None:
        """Poll the source; return None for nothing, while the source fails, and before a column that is new.

        Raises like `OpenSource.poll`.
        """
        now = monotonic()
        if self.news or not self.retry.is_due(now):
            return None
        try:
            with self._watch_answer():
                if self._source is None:
                    made = self.of.open(self.schemas, self.position)
                    check_made(f"the source {self.name!r}", "open", made, OpenSource)
                    self._source = made
                    self._source.declared(self.new)
                    self._source.note_guesses({name: bound.guessed for name, bound in self.bounds.items()})
                    self._source.keyed(self.keys, [name for name in self.keys if self.bounds[name].spec.time is None])
                    self.on_open()
                found = self._source.poll(room)
        except (SourceFailed, SourceNotLetIn) as error:
            self.retry.note_failure(error, now, monotonic() - now)
            self._drop()
            self.close()
            return None
        if found is not None:
            check_made(f"the source {self.name!r}", "poll", found, Polled)
            check_polled(f"the source {self.name!r}", found, typed=self.of.positions is not Any)
        # What no epoch may end behind is read again when the rest of it fails.
        self.retry.note_answer(now, whole=found is None or found.position is not None)
        if found is not None:
            self.heard = now
            self._look(found)
            if self.news:
                self._drop()
                return None
            self._open.append(found)
            self.gathered += rows_of([found])
            if found.position is not None:
                self.taken += self._open
                self._open, self.position = [], found.position
        return found

    def _look(self, found: Polled) -> None:
        """Note the columns of new rows that are left out, and the columns that are new."""
        for name, bound in self.bounds.items():
            if name in found.beside:
                fresh = self._fresh(name, found.beside[name])
                self._note(name, {column: found.beside[name][column] for column in fresh})
            if bound.format is not None:
                for batch in found.rows.get(name, ()):
                    self._look_within(name, bound.format, pa.Table.from_batches([batch]))

    def _look_within(self, name: str, format: Format, given: pa.Table) -> None:
        """Note the columns inside messages of a format, like `_look`."""
        messages, waiting = messages_of(format, given, repr(name)), self._waiting.setdefault(name, set())
        known = (*self.bounds[name].schema.names, *self.left_out.get(name, ()))
        # At the first look all count, also those that are declared: rows came.
        shown = format.columns(messages, {*known, *waiting} if name in self.left_out else ())
        asked = [*(self._fresh(name, shown) if shown else ()), *waiting]
        kinds = format.kinds(messages, asked) if asked else {}
        if kinds:
            shown = format.columns(messages, known)
            self._note(name, {c: Beside(kinds[c], str(messages.place(row))) for c, row in shown.items() if c in kinds})
        self._waiting[name] = {column for column in asked if column not in kinds}

    def _fresh(self, name: str, there: Mapping[str, Any]) -> list[str]:
        """List the new ones of some columns; none at the first look."""
        beside = [column for column in there if column not in self.bounds[name].schema.names]
        left_out = self.left_out.setdefault(name, tuple(beside))
        return [column for column in beside if column not in left_out]

    def _note(self, name: str, columns: Mapping[str, Beside]) -> None:
        told = {column: each for column, each in columns.items() if each.kind is not None}
        if told:
            self.news[name] = {**told, **self.news.get(name, {})}

    def evolved(self, bounds: Mapping[str, Binding]) -> None:
        """Continue after a commit with inputs that have other columns."""
        changed = {name: bounds[name] for name in self.bounds} != self.bounds
        self.bounds, self.news = {name: bounds[name] for name in self.bounds}, {}
        if changed:
            self.close()

    def calls(self) -> Iterator[CallRows]:
        """Group the rows that were taken into calls: batches of equal columns together, full contents alone."""
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

    def commit(self) -> None:
        """Acknowledge the taken rows to the source after their commit."""
        self.taken, self.committed, self.gathered = [], self.position, rows_of(self._open)
        if self._source is not None:
            with self._watch_answer():
                self._source.acknowledge(self.committed)

    def _drop(self) -> None:
        """Forget the rows behind which no epoch may end: they are read again."""
        self._open, self.gathered = [], rows_of(self.taken)

    def close(self) -> None:
        """Let go of the source."""
        if self._source is not None:
            with self._watch_answer():
                self._source.close()
            self._source = None

    def _watch_answer(self) -> AbstractContextManager[None]:
        """Let the run notice a request that lasts, and end it."""
        return self.retry.watch("has not answered")


def rows_of(polled: Iterable[Polled]) -> int:
    """Count the rows that were brought."""
    return sum(batch.num_rows for each in polled for batches in each.rows.values() for batch in batches)


def found(columns: Mapping[str, Beside]) -> str:
    """Columns that are new, in words."""
    return ", ".join(f"the column {name!r} ({each.kind}), first in {each.where}" for name, each in columns.items())


def refused(news: Mapping[str, Mapping[str, Beside]]) -> SchemaMismatch:
    """Make the error of a run that does not add columns automatically. ``news``: the new columns, by input."""
    name, columns = next(iter(news.items()))
    remedy = "declare it in the flow, which then takes it from here on, or run with evolve='add'; the state is whole"
    return SchemaMismatch(f"read the source of {name!r}", f"there is {found(columns)}, which is new", remedy)


class FedBy(NamedTuple):
    """``source``: as what it is attached.  ``kind``, ``target``, ``position``: as of `Attached`.

    >>> print(FedBy("shop", "kafka", "kafka://b:1/shop", {"offsets": {"0": 17}, "cluster": "", "topic_id": ""}))
    the source 'shop': kafka kafka://b:1/shop, read up to offset 17 of partition 0
    """

    source: str
    kind: str
    target: str
    position: Any

    def __str__(self) -> str:
        return f"the source {self.source!r}: {self.kind} {self.target}, read up to {said(self.kind, self.position)}"

    def order(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the position in an order by the source system's notation for it."""
        place = row.get(POSITION)
        return dict(row) if place is None else {**row, POSITION: placed(self.kind, place)}

    def to_dict(self) -> dict[str, Any]:
        """In plain values."""
        return {**self._asdict(), "read_up_to": said(self.kind, self.position)}


def feeding(sources: Mapping[str, Attached], input: str) -> FedBy | None:
    """Find the source that feeds an input; None if the state knows of none. O(sources)."""
    for name, of in sources.items():
        if name == input or input in of.left_out:
            return FedBy(name, of.kind, of.target, of.position)
    return None


def taken_up(
    sources: Mapping[str, Attached], name: str, source: Source, inputs: Collection[str], where: str
) -> Attached | None:
    """Return the state's record of the source ``name``; None if it is new. O(sources + inputs).

    ``inputs``: of the plan. Raises `SpecError` for a source of another kind, and for one that feeds fewer inputs than
    before, because their changes would be lost. Raises it also for a source that the state reads under another name,
    and for an input that another source of its kind feeds, because deleted rows would stay.
    """
    before, asked = sources.get(name), f"the source {name!r}"
    for each in () if source.shared else source.inputs(name):
        by = feeding({at: of for at, of in sources.items() if at != name and of.kind == source.kind}, each)
        if by is not None and by.target != source.target:
            found = f"this state reads {each!r} as {by.source!r}, from {by.target}"
            raise SpecError(asked, found, f"leave it to {by.source!r}; or begin a new state")
    if before is None:
        for other, of in sources.items():
            if not source.shared and (of.kind, of.target) == (source.kind, source.target):
                found = f"this state reads {of.target} as {other!r}, up to {said(of.kind, of.position)}"
                raise SpecError(asked, found, f"give it under that name, {other!r}, whatever inputs it feeds")
        return None
    if before.kind != source.kind:
        found = f"its position is one of {before.kind}, and this is {source.kind}"
        raise SpecError(asked, found, "attach the one that it was, or a new state")
    if gone := [each for each in before.left_out if each in inputs and each not in source.inputs(name)]:
        found = f"it feeds {' and '.join(map(repr, gone))} in this state, of which changes would be passed over"
        drop = Evolve(state=where, drop_inputs=gone)
        raise SpecError(
            asked, found, Phrase("give it with all that it feeds; what nobody needs any more goes by ", drop)
        )
    return before

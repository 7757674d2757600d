"""The inflow of a call: the rows of each input, admitted piece by piece and put with those that wait.

Invariant: either all rows of all inputs are taken in, or an error names what is wrong and every input is as before.
Batchers are changed in copies, which the engine adopts when nothing can be refused any more. Under a budget the input
is a stream that is never in memory whole, so rows are admitted and numbered while more are still to come; many rows are
spilled on the way.

>>> import pyarrow as pa
>>> parts = list(portions(pa.table({"v": range(10)}), "'v'", pa.schema({"v": pa.int64()}), 32))
>>> [part.num_rows for part in parts]
[4, 4, 2]
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import plain_size
from ddflow.connectors.formats.base import BAD as MARK
from ddflow.connectors.formats.base import Truncate
from ddflow.connectors.formats.messages import COLUMNS as MESSAGES
from ddflow.connectors.to_arrow import arrow, to_table
from ddflow.dataflow.admission import Admission, Admitted, Came, Where
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.budget import Budget, shown_size
from ddflow.dataflow.graph import Released
from ddflow.errors import BudgetExceeded, NotArrow, Option, Phrase, SchemaMismatch
from ddflow.operators.upsert.events import Events, joined
from ddflow.time import CLOSED, NEVER


@dataclass
class Inflow:
    """The rows of one input in one call."""

    batcher: Batcher | None
    """The pending events, with the admitted ones; None in epoch mode in memory, which has no pending events."""
    chunks: list[Events] = field(default_factory=list)
    """The events that were admitted then."""
    rows: int = 0
    """How many rows came, with those that do not go on."""
    counts: dict[str, int] = field(default_factory=dict)
    """Those, by verdict."""
    greatest: int = NEVER
    """The greatest time among the events that go on, or NEVER."""
    listed: list[pa.Table] = field(default_factory=list)
    """Verdict rows, when they are asked for."""
    bad: list[pa.Array] = field(default_factory=list)
    """The marks of unreadable messages."""
    table: str | None = None
    """That messages are of, None while none has said it."""

    def put(self, events: Events, budget: Budget) -> None:
        """Add events; spill them to files if they are many. Raises `SpillFull`, `SpillFailed`."""
        if self.batcher is None:
            self.chunks += [events] if events.times.size else []
            return
        self.batcher = self.batcher.with_run(events)
        if budget.home is not None and self.batcher.nbytes > budget.pending:
            self.batcher.spill(budget.home, budget.pending // 2, budget.chunk)

    @property
    def released(self) -> Released:
        """The events that no longer wait, together."""
        return Released.of(joined(self.chunks) if self.chunks else None)

    @property
    def pieces(self) -> Iterable[Events]:
        """All events, in chunks."""
        return self.chunks if self.batcher is None else self.batcher.released(CLOSED)[1]


Look = Callable[[pa.RecordBatch], None]
"""Is shown rows as they came."""
Truncated = Callable[[Inflow, Truncate], Iterable[pa.RecordBatch]]
"""Makes the events of a truncate from the rows before it."""


def flowing(
    given: Any,
    admission: Admission,
    batcher: Batcher | None,
    frontier: int,
    time: int | None,
    budget: Budget,
    listed: Callable[[Admitted], pa.Table] | None,
    look: Callable[[pa.RecordBatch], None] | None = None,
    truncated: Truncated | None = None,
) -> Inflow:
    """Admit all rows of one input.

    ``time``: of the step, in epoch mode. ``look``: sees all rows. ``truncated``: makes the events of a truncate from
    the rows before it. O(rows).

    Raises the errors of `Admission.admit`, `BudgetExceeded` for a row that is larger than the budget allows,
    `SpillFull` and `SpillFailed`, each before any change.
    """
    most = budget.piece // 2 if budget.spills else None
    inflow, came = Inflow(batcher), Came(admission.table)
    for part in (
        (given,) if most is None else portions(given, admission.what, admission.given, most, admission.bound.guessed)
    ):
        whole = admission.format is None
        cut = ((part, look, None),) if whole else _split_messages(part, admission, came, inflow, look, truncated)
        for rows, seen, where in cut:
            admitted = admission.admit(rows, frontier, time, inflow.rows, seen, where)
            inflow.put(admitted.events, budget)
            inflow.rows += admitted.rows
            inflow.greatest = max(inflow.greatest, admitted.greatest)
            if admitted.counts:
                add(inflow.counts, admitted.counts)
            if admitted.refused is not None and admission.marks:
                inflow.bad.append(admitted.refused.column(MARK).drop_null())
            if listed is not None:
                inflow.listed.append(listed(admitted))
    inflow.table = came.table
    return inflow


def _split_messages(
    part: Any, admission: Admission, came: Came, inflow: Inflow, look: Look | None, truncated: Truncated | None
) -> Iterator[tuple[Any, Look | None, Where | None]]:
    """Yield the events of messages and of truncates among them.

    Each comes with the function that shows its rows, None for implied rows, and the function that names its rows in
    errors.
    """
    for rows, cut, where in admission.parts(part, came):
        if cut is not None and truncated is not None:
            yield from ((deletes, None, None) for deletes in list(truncated(inflow, cut)))
        yield rows, look, where


def by_input(inputs: Any, known: Mapping[str, Admission]) -> Mapping[str, Any]:
    """Map a call's rows to inputs: ``inputs``, or only rows if there is one input. O(inputs and their columns).

    A mapping is rows, a dict of lists, if it has a column of the only input and is not the name of that input alone.
    Raises `NotArrow` or `SchemaMismatch` unless it is clear which rows are for which input.
    """
    if isinstance(inputs, Mapping):
        if inputs.keys() <= known.keys():
            return inputs
        only = next(iter(known.values()))
        columns = () if len(known) > 1 else only.bound.schema.names if only.bound.format is None else MESSAGES
        if not any(name in columns for name in inputs):
            raise no_input(next(name for name in inputs if name not in known), known)
    elif len(known) != 1:
        raise NotArrow(
            f"inputs from {type(inputs).__name__}",
            "it does not say which rows are for which input",
            f"give {{name: rows}}; the inputs are {list(known)}",
        )
    return {next(iter(known)): inputs}


def full_by_input(call: str, name: Any, rows: Any, known: Mapping[str, Admission]) -> Mapping[str, Any]:
    """Map a full-contents call's rows to inputs: ``rows`` is None if they are in the position of the name.

    Raises `NotArrow` or `SchemaMismatch` if either is missing.
    """
    if rows is None and not (isinstance(name, str) and name in known):
        if not (named := by_input(name, known)):
            raise NotArrow(call, "there are rows for no input", f"write {call}({{name: rows}}, ...)")
        return named
    if rows is None or not isinstance(name, str):
        found = "no rows are given" if rows is None else f"a {type(name).__name__} is no name of an input"
        raise NotArrow(
            call,
            found,
            Phrase(f"write {call}(name, rows, ...), or {call}(rows, ", Option("time"), "...) for the only input"),
        )
    if name not in known:
        raise no_input(name, known)
    return {name: rows}


def no_input(name: Any, known: Iterable[str]) -> SchemaMismatch:
    """Make the error for an unknown input."""
    return SchemaMismatch(f"rows for {name!r}", "there is no such input", did_you_mean(name, known), input=name)


def lateness_frontier(admissions: Mapping[str, Admission], inflows: Mapping[str, Inflow]) -> int:
    """Where ``lateness=`` puts the frontier: the least, over the inputs, of the greatest time seen less it."""
    to = CLOSED
    for name, admission in admissions.items():
        if admission.bound.spec.lateness is None:
            return NEVER
        seen = max(admission.greatest, inflows[name].greatest if name in inflows else NEVER)
        to = min(to, NEVER if seen == NEVER else max(seen - admission.bound.spec.lateness, NEVER))
    return to


def portions(given: Any, what: str, schema: pa.Schema, most: int, guessed: Collection[str] = ()) -> Iterator[pa.Table]:
    """Split rows into tables of at most ``most`` bytes; at least one, so that its columns are checked.

    A reader is read lazily. Raises the errors of `arrow`, and `BudgetExceeded` for a row that is larger.
    """
    given = arrow(given, what, schema, guessed)
    if not isinstance(given, pa.RecordBatchReader):
        yield from _split_table(to_table(given, what, schema), what, most)
        return
    batches: list[pa.RecordBatch] = []
    size, none = 0, True
    for batch in given:
        batches.append(batch)
        size += plain_size(batch)
        if size >= most:
            yield from _split_table(pa.Table.from_batches(batches, given.schema), what, most)
            batches, size, none = [], 0, False
    if batches or none:
        yield from _split_table(pa.Table.from_batches(batches, given.schema), what, most)


def _split_table(table: pa.Table, what: str, most: int) -> Iterator[pa.Table]:
    size = plain_size(table)
    if size <= most:
        yield table
        return
    if table.num_rows == 1:
        found = f"one row takes {shown_size(size)}, the budget leaves {shown_size(most)} for a row"
        raise BudgetExceeded(
            f"rows for {what}", found, Phrase("give a larger ", Option("memory"), "; nothing was taken in")
        )
    rows = max(min(table.num_rows * most // size, table.num_rows // 2), 1)
    for begin in range(0, table.num_rows, rows):
        yield from _split_table(table.slice(begin, rows), what, most)


def add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add some counts to others."""
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n

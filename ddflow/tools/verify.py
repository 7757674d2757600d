"""Verify a state: compare its collections with the rows that their logs give without it, and recompute its counts.

Guarantees: `verify` does not change the state. The expected contents come from one pass over the log, not from
incremental code. The state and the log are compared by ranges of identities, so memory use is bounded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from os import PathLike
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import (
    Ints,
    RowHasher,
    Secret,
    Words,
    compute_canonical_words,
    compute_value_hashes,
    unpack_validity,
)
from ddflow.columns.names import did_you_mean
from ddflow.columns.rows import row_values
from ddflow.connectors.formats.base import BAD as MARK
from ddflow.engine.lineage.log_parts import MARKS, convert_part_to_batches, iterate_parts, mark_log_parts
from ddflow.engine.snapshot import Snapshot
from ddflow.errors import CorruptState, ErrorText, NotReadable, Option
from ddflow.metrics import Look
from ddflow.operators.base import OperatorContext, RunningOperator
from ddflow.operators.updates import ints
from ddflow.plan.collection import Collection
from ddflow.plan.inputs.input import Binding
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import compute_node_ids, describe_plan, format_node
from ddflow.storage.feeding import FeedHistory
from ddflow.storage.opening import State, Trust
from ddflow.storage.protocol import Store
from ddflow.terminal import format_count, format_row
from ddflow.time import CLOSED, format_time
from ddflow.tools.export import read_collection_ranges
from ddflow.tools.merge_on_read import fold_log
from ddflow.trace.arrangement import PIECE, Arrangement
from ddflow.trace.batch import mark_first_of_keys

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class HashedRows(NamedTuple):
    """Rows in the order of their identities. No two rows have the same key, and ``n`` is the number of rows."""

    table: pa.Table
    high: Words
    low: Words
    """uint64[n], or size 0 if one word identifies a key."""
    value: Words
    """uint64[n]: hashes of the columns that count as changes."""

    @classmethod
    def of_range(cls, table: pa.Table, bound: Binding, secret: Secret, begin: int, end: int) -> HashedRows:
        """Hash the rows of an ordered table with identities from ``begin`` to ``end``.  O(n).

        Raises `CorruptState` for a row out of order or outside this range.
        """
        high, low = RowHasher(bound.key_schema, secret).identify_rows(table)
        after = high[1:] > high[:-1]
        if low.size:
            after |= (high[1:] == high[:-1]) & (low[1:] > low[:-1])
        fits = (high >= np.uint64(begin)) & (high <= np.uint64(end))
        fits[1:] &= after
        if not fits.all():
            raise misplaced_row_error(bound.name, table, int(np.flatnonzero(~fits)[0]))
        names = bound.unstamped_row_schema.names if bound.unique else bound.row_schema.names
        shown = list(dict.fromkeys([*names, *bound.tracked]))
        return cls(table.select(shown), high, low, compute_value_hashes(table.select(bound.tracked), secret))

    def match_keys(self, other: HashedRows) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the rows whose key is only in ``self`` or only in ``other``, and the pairs with equal keys.

        The result is four arrays of int64 row numbers: two arrays of unpaired rows, and two arrays of equal length for
        the pairs. O(n), or O(n log n) for identities of two words.
        """
        n, high = self.high.size, np.concatenate([self.high, other.high])
        low = np.concatenate([self.low, other.low])
        order = np.lexsort((low, high)) if low.size else np.argsort(high, kind="stable")
        same = ~mark_first_of_keys(high[order], low[order] if low.size else low)[1:]
        first, second = order[:-1][same], order[1:][same]
        alone = np.ones(order.size, bool)
        alone[first] = alone[second] = False
        left = np.flatnonzero(alone)
        return left[left < n], left[left >= n] - n, first, second - n

    def build_key_mask(self, keys: set[tuple[int, int]], rows: Ints) -> Mask:
        """Mark the rows whose identity is in a set of (high, low) pairs.

        The low part is 0 if identities have one word.
        """
        low = self.low[rows].tolist() if self.low.size else [0] * rows.size
        pairs = zip(self.high[rows].tolist(), low, strict=True)
        return np.fromiter((pair in keys for pair in pairs), bool, rows.size)


def align_ranges(
    one: Arrangement, other: Arrangement, bound: Binding, secret: Secret
) -> Iterator[tuple[HashedRows, HashedRows]]:
    """Yield the rows of two arrangements, range by range of identities.  O(n log n).

    ``bound``: the input, with the key and the value columns. Each side may have several partitions. A side must not
    change during the comparison. Raises like `HashedRows.of_range`.

    >>> import ddflow as dd
    >>> flow, secret = dd.Flow(), Secret(1, 2)
    >>> input = flow.output("v", flow.upserts("v", {"k": pa.int64(), "v": pa.int64()}, dd.Upsert(key="k")))
    >>> def rows_of(keys, values):
    ...     engine = flow.open(secret=secret)
    ...     _ = engine.step({"v": pa.table({"k": keys, "v": values})}, time=1)
    ...     return engine.dataflow.graph.inputs["v"].output_arrangement
    >>> one, other = rows_of([1, 2, 3], [1, 2, 3]), rows_of([2, 3, 5], [2, 4, 5])
    >>> found = [a.match_keys(b) for a, b in align_ranges(one, other, input.bound, secret)]
    >>> sum(extra.size for extra, *_ in found), sum(missing.size for _, missing, *_ in found)
    (1, 1)
    """
    parts = [*one.partitions, *other.partitions]
    count = sum(each.keys for each in parts) // PIECE + 1
    ends = [((number + 1) << 64) // count - 1 for number in range(count)]
    begin = 0
    for end, *tables in zip(ends, *(each.iterate_live_ranges(ends) for each in parts), strict=True):
        pieces = [HashedRows.of_range(table, bound, secret, begin, end) for table in tables]
        yield _concat_hashed_rows(pieces[: len(one.partitions)]), _concat_hashed_rows(pieces[len(one.partitions) :])
        begin = end + 1


def _concat_hashed_rows(pieces: list[HashedRows]) -> HashedRows:
    words = (np.concatenate(each) for each in zip(*(piece[1:] for piece in pieces), strict=True))
    return HashedRows(pa.concat_tables([piece.table for piece in pieces]), *words)


def misplaced_row_error(name: str, table: pa.Table, row: int) -> CorruptState:
    """Build the error for a row that is not in the place of its key."""
    shown = format_row(row_values(table, row))[:200]
    return CorruptState(
        f"the rows of {name!r}",
        f"a row is not in the place of its key: {shown}",
        "do not use this state; replay the log into a new one",
    )


def recount_groups(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """Compute each count of a state again.

    For each count, yield its description, and the number of groups whose stored count differs from their rows.

    Counts that depend on the order of arrival are skipped. Counts over rows that the state forgot or did not keep are
    skipped, too. O(rows) time, with memory for the groups. Raises `CountOverflow`.

    >>> import ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", people.project(["city"]).count())
    >>> with flow.open(store) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
    >>> with Snapshot.open(store) as snapshot:
    ...     list(recount_groups(snapshot))
    [("people.project(['city']).count(by=['city'])", 0)]
    """
    ids, description = compute_node_ids(snapshot.flow), describe_plan(snapshot.flow)
    for node, kept in snapshot.dataflow.graph.keeping.items():
        if (
            node.forgetting
            or node.as_it_came
            or not kept.arrangements
            or snapshot.dataflow.graph.list_stateless_inputs(*node.inputs)
        ):
            continue
        fresh = _recompute_state(snapshot, node)
        secret = snapshot.dataflow.graph.secret
        stored, made = _hash_groups(kept.output_arrangement, secret), _hash_groups(fresh.output_arrangement, secret)
        wrong = max(np.setdiff1d(stored, made).size, np.setdiff1d(made, stored).size)
        yield format_node(description, ids[node], "this state"), wrong


def _recompute_state(snapshot: Snapshot, node: Collection) -> RunningOperator:
    """Run an operator over the rows of its input, in a new state, with a separate step for each range of rows."""
    graph = snapshot.dataflow.graph
    fresh: RunningOperator = node.open(
        OperatorContext(graph.secret, graph.plan.time_type, frozenset(node.schema.names))
    )
    for number, piece in enumerate(read_collection_ranges(graph, node.inputs[0])):
        time = snapshot.frontier - 1 if node.reads_clock else number
        if piece.diffs.size:
            _, change = fresh.compute([piece._replace(times=ints(time))], time)
            fresh.apply([change], time + 1, time)
    return fresh


def _hash_groups(arranged: Arrangement, secret: Secret) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Compute a hash of each group and its count."""
    tables: list[pa.Table] = list(arranged.iterate_rows())
    return np.concatenate([np.empty(0, np.uint64), *(compute_value_hashes(table, secret) for table in tables)])


FIRST: Final = 10
"""Largest number of differences in the result."""


@dataclass(frozen=True)
class RowDifference:
    """A key for which the state and its log have different rows.

    ``what``: "missing" (in the state), "extra" or "different".  ``state``, ``log``: the rows; None for a missing one.
    """

    what: str
    key: dict[str, Any]
    state: dict[str, Any] | None
    log: dict[str, Any] | None

    def __str__(self) -> str:
        key, state, log = map(format_row, (self.key, self.state, self.log))
        return f"{self.what} {key}: the state has {state}, the log has {log}"


@dataclass
class InputVerifyResult:
    """The result of the comparison of one input.

    ``events``: number of events in the log.  ``later``: number of events of the log at or after the state's frontier.
    ``pending``: number of events in the state that wait for their times.  ``bad``: number of unreadable messages of
    the log, which are skipped like in a step.  ``rows``: number of rows in the state.  ``expected``: number of rows
    that the log gives.  ``unknown``: number of keys that were not compared.  ``first``: the first differences.
    ``notes``: remarks on the result.
    """

    input: str
    events: int = 0
    later: int = 0
    pending: int = 0
    bad: int = 0
    rows: int = 0
    expected: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    unknown: int = 0
    first: list[RowDifference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if the state and the log agree."""
        return not (self.missing or self.extra or self.different) and self.later == self.pending

    @property
    def text(self) -> str:
        """A summary in one line, then one line for each listed difference and each note."""
        counts = f"{format_count(self.rows, 'row')}, {format_count(self.events, 'event')}"
        said = f"input {self.input!r} agrees with its log: {counts}"
        if not self.ok:
            said = (
                f"input {self.input!r} DIFFERS from its log: {self.missing:,} rows missing, "
                f"{self.extra:,} extra, {self.different:,} different; the state has {self.rows:,}, the log gives "
                f"{self.expected:,} of {self.events:,} events"
            )
        if self.later != self.pending:
            said += f"; {self.pending:,} events are pending, but the log has {self.later:,} at or after the frontier"
        return "\n".join([said, *(f"  {each}" for each in self.first), *(f"  note: {each}" for each in self.notes)])


@dataclass(frozen=True)
class VerifyResult:
    """The result of `verify`. Printing it shows the result as text.

    Attributes
    ----------
    where, epoch
        The state, and its epoch.
    inputs : mapping of str to InputVerifyResult
        The results by input.
    operators : mapping of str to int
        By description of a count: the number of groups whose count differs from their rows.

    Examples
    --------
    >>> import ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> _ = flow.output("out", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
    >>> log = pa.table({"id": [1, 2, 1], "city": ["Bern", "Basel", "Chur"]})
    >>> with flow.open(store) as engine:
    ...     _ = engine.step({"people": log.slice(0, 2)}, time=1)
    >>> print(verify(store, {"people": log}).inputs["people"].text)
    input 'people' DIFFERS from its log: 0 rows missing, 0 extra, 1 different; the state has 2, the log gives 2 of 3 ...
      different (id=1): the state has (id=1, city='Bern'), the log has (id=1, city='Chur')
      note: only the order of arrival decides which event wins, so the log must be in this order
      note: the state has ingested 2 events, but the log has 3
    """

    where: str
    epoch: int
    inputs: Mapping[str, InputVerifyResult]
    operators: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether everything agrees."""
        return all(each.ok for each in self.inputs.values()) and not any(self.operators.values())

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to plain values."""
        inputs = {name: asdict(each) | {"ok": each.ok} for name, each in self.inputs.items()}
        return {
            "state": self.where,
            "epoch": self.epoch,
            "ok": self.ok,
            "inputs": inputs,
            "operators": dict(self.operators),
        }

    def __str__(self) -> str:
        lines = [f"{self.where}, epoch {self.epoch}", *(each.text for each in self.inputs.values())]
        lines += [f"{what}: {n:,} rows are WRONG" for what, n in self.operators.items() if n]
        return "\n".join(lines)


def verify(
    state: State,
    logs: Mapping[str, Any],
    *,
    epoch: int | None = None,
    flow: Plan | None = None,
    memory: str | int | None = "1GB",
    spill: str | PathLike[str] | None = None,
    trust: Trust = "owner",
    look: Look = lambda rows: None,
) -> VerifyResult:
    """Compare inputs of a state with their logs, key by key.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    logs : mapping of str to table or iterable of tables
        By input, as for `ddflow.merge_on_read`: everything given to the state, in the order of arrival if the order
        decides.  If some calls brought no events, give one part for each call, or put those parts into a mark.  A log
        may begin with full contents that replaced everything before: see `ddflow.engine.lineage.log_parts`.
    epoch, flow, trust
        See `ddflow.read`.
    memory : str or int, optional
        A memory budget for the fold, such as "1GB"; None keeps all in memory.
    spill : str or path, optional
        The folder for data beyond the budget.  By default a temporary one.
    look : callable
        Progress callback: receives the number of events read since its last call.

    Returns
    -------
    VerifyResult
        Counts of equal and different rows, and the first differences.

    Raises
    ------
    NotReadable, LogUnclear
        For an unknown input; for a log that contradicts the calls that fed the state.
    DdflowError
        The errors of `ddflow.read` for the state, and of `ddflow.merge_on_read` for a log.

    Notes
    -----
    O(n + b) time, for n events in the logs and b bytes of the state.
    """
    with Snapshot.open(state, epoch=epoch, flow=flow, trust=trust) as snapshot:
        for name in logs:
            if name not in snapshot.flow.inputs:
                raise NotReadable(
                    f"verify the input {name!r}",
                    "the state has no such input",
                    did_you_mean(name, snapshot.flow.inputs, "inputs"),
                    input=name,
                )
        found = {}
        for name, log in logs.items():
            with ExitStack() as stack:
                folder = spill
                if memory is not None and spill is None:
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ddflow-verify-"))
                found[name] = _InputComparison(snapshot, name, look).run(log, memory, folder)
        counts = dict(recount_groups(snapshot))
        return VerifyResult(state.where if isinstance(state, Store) else str(state), snapshot.epoch, found, counts)


class _InputComparison:
    """A comparison of one input, as a snapshot shows it, with the log of this input."""

    def __init__(self, snapshot: Snapshot, name: str, look: Look) -> None:
        self.snapshot, self.look, self.out = snapshot, look, InputVerifyResult(name)
        self.upsert = snapshot.dataflow.graph.inputs[name]
        if not self.upsert.bound.has_stored_rows:
            raise NotReadable(
                f"verify the input {name!r}",
                "its rows are not stored",
                ErrorText("pass ", Option("keep", True), " to flow.updates"),
                input=name,
            )
        self.secret = Secret(*snapshot.manifest.secret)
        self.bound = self.upsert.bound
        spec = self.bound.spec
        if spec.ingested is not None and not self.bound.unique and (not spec.holds_back or spec.late == "advance"):
            raise NotReadable(
                f"verify the input {name!r}",
                f"the times in {spec.ingested!r} are part of its rows, but a log does not have the times of steps",
                f"compare tables without that column: dd.compare(..., ignore=[{spec.ingested!r}])",
                input=name,
            )
        self.unknown: set[tuple[int, int]] = set()

    def run(self, log: Any, memory: str | int | None, spill: Any) -> InputVerifyResult:
        """Read both sides once, and return the result."""
        self._count_pending()
        bound = self.bound
        fed = self.snapshot.dataflow.fed.get(bound.name, FeedHistory())
        given = self._convert_parts(mark_log_parts(iterate_parts(log, repr(bound.name)), fed, bound))
        how: Any = {"memory": memory, "spill": spill, "format": None if bound.unique else bound.format}
        with fold_log(given, bound.spec, bound.schema, secret=self.secret, **how) as expected:
            for one, other in align_ranges(
                self.upsert.output_arrangement, expected.output_arrangement, bound, self.secret
            ):
                self._compare_range(one, other)
        self._add_notes()
        return self.out

    def _convert_parts(self, told: Iterator[Any]) -> Iterator[Any]:
        """Convert the parts of the log to the input's columns, and keep their marks."""
        for part in told:
            marked = isinstance(part, MARKS)
            table = self.snapshot.dataflow.admissions[self.out.input].table
            seen = map(self._select_events, convert_part_to_batches(part.rows if marked else part, self.bound, table))
            if not marked:
                yield from seen
            elif (first := next(seen, None)) is not None:
                yield replace(part, rows=pa.RecordBatchReader.from_batches(first.schema, chain([first], seen)))
            else:
                yield replace(part, rows=self.bound.schema.empty_table())

    def _count_pending(self) -> None:
        """Count the pending events.

        Record the keys of advanced events, because the log may have more events of these keys.
        """
        for run in self.snapshot.dataflow.batchers[self.out.input].runs.by_least:
            waiting = run.pending_events
            early = np.flatnonzero(waiting.original < self.snapshot.frontier)
            self.out.pending += waiting.times.size - early.size
            if early.size:
                high, low = self.upsert.keys.identify_rows(waiting.rows.take(pa.array(early)))
                self.unknown.update(zip(high.tolist(), low.tolist() or [0] * high.size, strict=True))
        self.out.unknown = len(self.unknown)

    def _select_events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Select the events whose effects the state must show.

        These are the events before the frontier of the state and the events without a key, except unreadable messages.
        """
        self.out.events += batch.num_rows
        self.look(batch.num_rows)
        if self.bound.has_bad_event_column and (bad := batch.num_rows - batch.column(MARK).null_count):
            self.out.bad += bad
            batch = batch.filter(batch.column(MARK).is_null())
        name, frontier = self.bound.spec.time, self.snapshot.frontier
        if name is None or frontier == CLOSED or not batch.num_rows:
            return batch
        column = batch.column(name)
        present = unpack_validity(column)
        later = compute_canonical_words(column).view(np.int64) >= frontier
        if present.size:
            later &= present != 0
        if self.bound.spec.null_key != "keep":
            later &= self.bound.mark_events_without_key(self.bound.add_event_columns(batch, batch.schema.names)) == 0
        self.out.later += int(later.sum())
        return batch.filter(pa.array(~later)) if later.any() else batch

    def _compare_range(self, one: HashedRows, other: HashedRows) -> None:
        """Count the differences in a range.  ``one``: rows of the state.  ``other``: rows of the log."""
        out = self.out
        out.rows, out.expected = out.rows + one.high.size, out.expected + other.high.size
        extra, missing, ours, theirs = one.match_keys(other)
        wrong = one.value[ours] != other.value[theirs]
        if self.bound.spec.expiry is not None or self.bound.watermark is not None:
            out.unknown, missing = out.unknown + missing.size, missing[:0]
        if self.unknown:
            extra, missing = (
                at[~piece.build_key_mask(self.unknown, at)] for piece, at in ((one, extra), (other, missing))
            )
            wrong &= ~one.build_key_mask(self.unknown, ours)
        out.extra, out.missing = out.extra + extra.size, out.missing + missing.size
        out.different += int(wrong.sum())
        self._add_differences("different", one, ours[wrong], other, theirs[wrong])
        self._add_differences("missing", None, missing, other, missing)
        self._add_differences("extra", one, extra, None, extra)

    def _add_differences(
        self, what: str, one: HashedRows | None, ours: Ints, other: HashedRows | None, theirs: Ints
    ) -> None:
        for a, b in zip(ours.tolist(), theirs.tolist(), strict=True):
            if len(self.out.first) >= FIRST:
                return
            state, log = (None if p is None else row_values(p.table, i) for p, i in ((one, a), (other, b)))
            row = state if state is not None else log
            assert row is not None
            self.out.first.append(
                RowDifference(what, {name: row[name] for name in self.bound.key_schema.names}, state, log)
            )

    def _add_notes(self) -> None:
        out, spec, notes = self.out, self.bound.spec, self.out.notes
        if spec.key and not (spec.holds_back or spec.order_by or spec.seq):
            notes.append("only the order of arrival decides which event wins, so the log must be in this order")
        if spec.track is not None:
            notes.append(f"only the columns {list(spec.track)} count as changes, so only these are compared")
        if spec.noop_ignore:
            notes.append(f"the columns {list(spec.noop_ignore)} do not count as changes, so they are not compared")
        if spec.ingested is not None and self.bound.unique:
            notes.append(f"the times in {spec.ingested!r} are not compared")
        if spec.holds_back and out.later + out.pending:
            frontier = format_time(self.snapshot.frontier, self.bound.time_type)
            notes.append(
                f"events at or after the frontier {frontier} are not in the collection yet: the log has "
                f"{out.later:,}, and {out.pending:,} are pending in the state"
            )
        if spec.expiry is not None:
            notes.append(
                f"keys expire, but a log does not show when: {out.unknown:,} rows are only in the log and were not "
                "compared; the log is folded without expiry"
            )
        elif out.unknown and spec.watermark is not None:
            notes.append(f"{out.unknown:,} rows are only in the log, and may be forgotten below the watermark")
        elif out.unknown:
            notes.append(f"{out.unknown:,} keys have an advanced late event that is pending, so they are not compared")
        if spec.late != "error" and (late := self.snapshot.dataflow.totals.get("late", 0)):
            notes.append(f"the state has refused {late:,} late events; a log does not show which, so all are folded")
        if out.bad:
            notes.append(f"{out.bad:,} messages of the log cannot be read, and are skipped because of on_bad='drop'")
        arrived = self.snapshot.dataflow.admissions[out.input].arrived
        if arrived != out.events:
            notes.append(f"the state has ingested {arrived:,} events, but the log has {out.events:,}")

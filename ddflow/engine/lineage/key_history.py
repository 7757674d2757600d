"""Build the history of one key: its versions, its pending events and, if there is a log, the verdict of each event.

The versions come from the state, which keeps winning events with their orders but does not keep losing events. So
`build_key_history` replays all events of this key in the log with a new operator of the same kind, in the order of the
log. In hold-back mode, replayed events keep their own times. In epoch mode, each part of the log is one epoch, and the
number of the part is the time of its events. If the times of steps are days or timestamps, events show the number of
their part instead of a time. If full contents lack the key and their scope includes the key's held row, the story shows
a deletion.

Limits: the story does not show whether an event was late, because this depends on events of other keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, RowHasher, Secret, compute_identities
from ddflow.columns.names import TIME, did_you_mean
from ddflow.columns.rows import gather_table, row_values
from ddflow.dataflow.admission import InputValidator
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.result import decode_verdicts
from ddflow.engine.full_contents import FullContents
from ddflow.engine.lineage.log_parts import (
    MARKS,
    Full,
    Restated,
    convert_part_to_batches,
    iterate_parts,
    mark_log_parts,
)
from ddflow.engine.lineage.story import ABSENT, HELD, PART, Story
from ddflow.engine.run.source_reader import find_source_feed
from ddflow.errors import NotReadable
from ddflow.operators.updates import build_time_column, ints
from ddflow.operators.upsert.events import Events, merge_events
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.plan.inputs.bind import BoundUpserts, bind_upserts
from ddflow.plan.inputs.spec import Upsert as Spec
from ddflow.storage.feeding import FeedHistory
from ddflow.time import CLOSED, INT64, NEVER


def build_key_history(dataflow: Dataflow, input: str, key: Any, log: Any = None) -> Story:
    """Build the story of a key. O(runs + pending events), plus O(events of the log).

    ``key``: the key's value, values in the order of the key columns, or a mapping by column. ``log``: a log as for
    `ddflow.verify`; each part of an iterable is one epoch. Raises `NotReadable` if the input is unknown or the key is
    invalid. Raises `LogUnclear` if the log does not match the recorded calls of the input. Also raises `TieRefused`,
    and the errors of `InputValidator.validate_rows`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> schema = {"id": pa.int64(), "city": pa.string(), "at": pa.int64()}
    >>> _ = flow.output("out", flow.upserts("people", schema, dd.Upsert(key="id", order_by="at")))
    >>> log = [pa.table({"id": [7, 8], "city": ["Bern", "Chur"], "at": [5, 5]})]
    >>> log.append(pa.table({"id": [7], "city": ["Basel"], "at": [3]}))
    >>> with flow.open(retain=9) as engine:
    ...     for time, rows in enumerate(log, 11):
    ...         _ = engine.step({"people": rows}, time)
    ...     print(build_key_history(engine.dataflow, "people", 7, log))
    the key (id=7) of 'people' holds (id=7, city='Bern', at=5)
      from 11: (id=7, city='Bern', at=5), by order (at=5)
    its 2 events in the log (times are replay epochs, one for each part of the log)
      at 1: applied (id=7, city='Bern', at=5)
      at 2: stale (id=7, city='Basel', at=3); the key held order (at=5)
    """
    if input not in dataflow.graph.inputs:
        raise NotReadable(
            f"why {key!r} of {input!r}",
            "there is no input or output of that name",
            did_you_mean(input, [*dataflow.graph.inputs, *dataflow.flow.outputs], "names"),
        )
    upsert = dataflow.graph.inputs[input].require_keys(f"why {key!r} of {input!r}", NotReadable)
    row, fed = make_key_row(upsert.bound, key), dataflow.fed.get(input, FeedHistory())
    story = _KeyHistoryBuilder(upsert.bound, row)
    now = story.add_versions(upsert, dataflow.since)
    story.add_pending_events(dataflow.batchers[input], upsert.secret)
    replayed = ""
    if log is not None:
        story.replay_log(mark_log_parts(iterate_parts(log, repr(input)), fed, upsert.bound), dataflow.frontier)
        replayed = story.replayed
    return Story(
        input,
        row_values(row, 0),
        story.make_table(),
        now,
        tuple(upsert.bound.unstamped_row_schema.names),
        story.settled,
        replayed,
        "" if fed.has_only_events else str(fed),
        tuple(story.scopes),
        find_source_feed(dataflow.sources, input),
    )


def make_key_row(bound: BoundUpserts, key: Any) -> pa.RecordBatch:
    """Convert a key to a batch of one row with the key columns. Raises `NotReadable` if the value cannot be a key."""
    names, asked = bound.key_schema.names, f"the key {key!r} of {bound.name!r}"
    if isinstance(key, Mapping):
        given = dict(key)
    else:
        values = list(key) if isinstance(key, tuple | list) and len(names) > 1 else [key]
        given = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
    if sorted(given) != sorted(names):
        raise NotReadable(asked, f"its columns are {names}", "pass a value for each of them")
    columns = []
    for field in bound.key_schema:
        value = given[field.name]
        columns.append(convert_to_column_type(field, value, asked))
        if value is None and not field.nullable:
            raise NotReadable(
                asked, f"{field.name!r} is null", "pass a value, because keys of this input are never null"
            )
    return pa.RecordBatch.from_arrays(columns, schema=bound.key_schema)


def convert_to_column_type(field: pa.Field, value: Any, asked: str) -> pa.Array:
    """Convert a value to an array of one element that has the type of a column.

    Raises `NotReadable` if the value does not fit this type.
    """
    try:
        if isinstance(value, pa.Scalar):
            if value.type == field.type:  # it may be outside Python's calendar
                return pa.repeat(value, 1)
            value = value.as_py()
        if isinstance(value, float) and pat.is_integer(field.type) and not value.is_integer():
            raise ValueError("it has a fraction")
        return pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        why = "" if isinstance(error, TypeError) else f" ({error})"  # a TypeError's text names Arrow's internal types
        raise NotReadable(asked, f"{value!r} is not a valid {field.type}{why}", "pass a value of that type") from None


class _KeyHistoryBuilder:
    """A builder for the table of a story. ``row``: the key, as a batch of one row with the key columns."""

    def __init__(self, bound: BoundUpserts, row: pa.RecordBatch) -> None:
        self.bound, self.row = bound, row
        own_times = bound.spec.holds_back
        self.dated = not own_times and bound.time_type != INT64
        self.replayed = "times are replay epochs, one for each part of the log"
        if own_times:
            self.replayed = "with their own times, in order"
        elif self.dated:
            self.replayed = "in the order of the parts of the log"
        self.winners = [bound.schema.field(name) for name in bound.spec.order_by]
        own = [
            pa.field("what", pa.string()),
            pa.field(TIME, bound.time_type),
            pa.field("verdict", pa.string()),
            pa.field("seq", pa.int64()),
            *([pa.field(PART, pa.int64())] if self.dated else []),
        ]
        rest = [f.with_nullable(True) for f in bound.schema]
        rest += [f.with_name(f"winner_{f.name}").with_nullable(True) for f in self.winners]
        self.schema = pa.schema([*own, *rest])
        self.made: list[pa.Table] = []
        self.settled = 0
        self.scopes: list[str | None] = []

    def make_table(self) -> pa.Table:
        """Build the table of the story."""
        return pa.concat_tables([self.schema.empty_table(), *self.made])

    def _add_rows(
        self,
        what: list[str] | str,
        times: Ints,
        rows: pa.Table | pa.RecordBatch,
        winners: Sequence[Any] | None,
        verdict: pa.Array | None = None,
        seq: Ints | None = None,
    ) -> None:
        n, replayed = times.size, self.dated and verdict is not None
        columns: list[pa.Array | pa.ChunkedArray] = [
            pa.array([what] * n if isinstance(what, str) else what, pa.string()),
            pa.nulls(n, self.bound.time_type) if replayed else build_time_column(times, self.bound.time_type),
            pa.nulls(n, pa.string()) if verdict is None else verdict,
            pa.nulls(n, pa.int64()) if seq is None else pa.array(seq),
            *([pa.array(times) if replayed else pa.nulls(n, pa.int64())] if self.dated else []),
        ]
        there = set(rows.schema.names)
        columns += [rows.column(f.name) if f.name in there else pa.nulls(n, f.type) for f in self.bound.schema]
        columns += [pa.nulls(n, f.type) for f in self.winners] if winners is None else winners
        self.made.append(pa.Table.from_arrays(columns, schema=self.schema))

    def add_versions(self, upsert: RunningUpsert, since: int) -> dict[str, Any] | None:
        """Add the versions of the key, oldest version first. Return the current row of the key."""
        (high, low), now = compute_identities(self.row, upsert.secret, 1), None
        for arranged, part in (
            (each, part)
            for each in upsert.output_arrangement.partitions
            for part in each.find_group_versions(high, low)
        ):
            batch = arranged.slots[part.slot]
            at = np.arange(part.begin, part.end)
            live, rows = batch.live[at] != 0, gather_table(arranged.slots.pool, part.references, arranged.schema)
            # The stored row of a deletion lacks the key's values, so the values are taken from `row`.
            own = self.row.schema.names
            columns = [
                pa.repeat(self.row.column(n)[0], at.size) if n in own else _mask_deletions(rows.column(n), live)
                for n in rows.schema.names
            ]
            shown = pa.table(columns, names=rows.schema.names)
            order = upsert.order
            kept = order.keeps and bool(order.fields)
            winners = order.decode_orders(batch.order[at], rows if order.hidden else None) if kept else None
            self._add_rows([HELD[bool(each)] for each in live], batch.time[at], shown, winners)
            self.settled += int((batch.time[at] <= since).sum())
            there = shown.select([n for n in shown.schema.names if n in self.bound.row_schema.names])
            now = row_values(there, at.size - 1) if live[-1] else None
        return now

    def add_pending_events(self, batcher: Batcher, secret: Secret) -> None:
        """Add the pending events of the key."""
        for run in batcher.runs.by_least:
            waiting = run.pending_events
            at = self._find_rows_of_key(waiting.rows, secret)
            if at.size:
                self._add_rows(
                    "pending", waiting.times[at], waiting.rows.take(pa.array(at)), None, seq=waiting.arrival[at]
                )

    def _find_rows_of_key(self, events: pa.RecordBatch, secret: Secret) -> Ints:
        """Return the positions of the rows that have this key."""
        hashes = RowHasher(pa.schema([field.with_nullable(True) for field in self.bound.key_schema]), secret)
        lacks = (
            self.bound.mark_events_without_key(events)
            if self.bound.spec.null_key != "keep"
            else np.zeros(events.num_rows, np.uint8)
        )
        (high, low), own = hashes.identify_rows(events), hashes.identify_rows(self.row)
        return np.flatnonzero((high == own[0][0]) & (low == own[1][0]) & (lacks == 0))

    def replay_log(self, log: Iterator[Any], frontier: int) -> None:
        """Resolve all events of this key in the log with a new operator, and add each event.

        ``log``: the parts with their marks.
        """
        late: Any = "advance" if self.bound.spec.late == "advance" else "error"
        spec: Spec = replace(
            self.bound.spec, stale="drop", lateness=None, late=late, ingested=None, watermark=None, ahead=None
        )
        bound = bind_upserts(self.bound.name, self.bound.schema, spec, self.bound.format)
        upsert, admission, batcher = RunningUpsert(bound, Secret.fresh()), InputValidator(bound), Batcher()
        seen = 0
        for number, part in enumerate(log, 1):
            mine, places = [], []
            whole = self._make_full_contents(upsert, part, number) if isinstance(part, MARKS) else None
            for batch in convert_part_to_batches(part if whole is None else part.rows, self.bound):
                if whole is not None:
                    InputValidator(bound).validate_rows(batch, NEVER, number, 0, [whole.add_rows])
                at = self._find_rows_of_key(batch, upsert.secret)
                mine.append(batch.take(pa.array(at)))
                places.append(at + seen)
                seen += batch.num_rows
            place, rows, parts = np.concatenate([ints(), *places]), 0, []
            for batch in mine:
                events, _ = admission.validate_rows(batch, NEVER, None if spec.holds_back else number, rows)
                rows += batch.num_rows
                parts.append(events)
            parts = [
                each._replace(arrival=place[each.arrival - admission.arrived]) for each in parts if each.times.size
            ]
            if whole is not None:
                parts += self._find_deletion(whole, number, seen)
            admission.arrived += rows
            if parts and spec.holds_back:
                batcher.add(merge_events(parts))
            elif parts:
                self._resolve_events(upsert, merge_events(parts), ints(number), None if whole is None else seen)
        if (left := batcher.seal(CLOSED)) is not None:
            early = int(np.searchsorted(left.times, frontier))
            before = left.slice_events(0, early)
            if early:
                self._resolve_events(upsert, before, np.unique(before.times))
            later = left.slice_events(early, left.times.size)
            verdict = pa.array(["pending"] * later.times.size, pa.string())
            self._add_rows("event", later.times, later.rows, None, verdict, later.arrival)

    def _make_full_contents(self, upsert: RunningUpsert, part: Full | Restated, number: int) -> FullContents:
        scope = part.scope if isinstance(part, Full) else None
        return FullContents(upsert, f"part {number} of the log of {self.bound.name!r}", scope, part.order)

    def _find_deletion(self, whole: FullContents, number: int, arrival: int) -> list[Events]:
        """Return the deletion of this key if the key is held and the full contents lack the key.

        Else return an empty list.
        """
        out = []
        for events in whole.make_absent_key_deletions(whole.sort_identities()):
            out.append(Events.at_time(events, number, arrival + np.arange(events.num_rows), None))
            self.scopes.append(whole.text)
        return out

    def _resolve_events(self, upsert: RunningUpsert, events: Events, times: Ints, contents: int | None = None) -> None:
        """Resolve events. Add each event together with its verdict.

        ``contents``: the arrival number of the first deletion that full contents imply; None without full contents.
        """
        upsert.contents = contents
        resolved = upsert.resolve(events, times, int(times[-1]))
        winners = resolved.winner_orders(np.arange(events.times.size)) if self.winners else None
        given = pa.array(events.arrival < (CLOSED if contents is None else contents))
        what, verdict = pc.if_else(given, "event", ABSENT), pc.if_else(given, decode_verdicts(resolved.verdict), ABSENT)
        self._add_rows(what.to_pylist(), events.times, events.rows, winners, verdict, events.arrival)
        upsert.apply(resolved, int(times[-1]) + 1, int(times[-1]))
        upsert.contents = None


def _mask_deletions(column: pa.ChunkedArray, live: Any) -> pa.Array:
    """Set the values of a column to null in all versions that are deletions."""
    places: Iterator[Any] = (i if there else None for i, there in enumerate(live.tolist()))
    return column.combine_chunks().take(pa.array(list(places), pa.int64()))

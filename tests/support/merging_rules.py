"""Define the rules by which the twin merges: fold the events of a key into its state, one by one and cell by cell.

`fold` follows section 9 of docs/semantics.md. An event sees only the result of earlier events, so it does not matter
how the events are split into steps. For each row, column group or cell, the event that set it is recorded as a mark:
its order, its seq and, for ``tie="greatest"``, its values. `model` handles times and outputs. A type is a name such as
"int8", or a dict for a struct.

>>> from ddflow.plan.merge.strategy import sum, union
>>> cell(sum(), "int8", 3, 5), cell(union(), "", ("a", "b"), ("b", "c"))
(8, ('a', 'b', 'c'))
>>> cell(sum(), "int8", 100, 100)
Traceback (most recent call last):
    ...
rules.Refused: MergeOverflow
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context
from typing import Any

import numpy as np
from rules import Event, Held, Input, Row, canonical, rank, ranks, refuse, same

from ddflow.plan.merge.merge import Merge
from ddflow.plan.merge.strategy import Strategy, first, last, last_non_null

FOLDED, OLDER, TIE = "folded", "older", "tie"
EXACT = Context(prec=80)


# Cells


def cell(strategy: Strategy, kind: Any, o: Any, n: Any, given: bool = True, new: bool = False) -> Any:
    """Return the cell after an event.

    ``given``: the event's batch has the column. ``new``: the event creates the row.
    """
    name = strategy.name
    if name == "last":
        return n if given else o
    if name == "first":
        return n if new else o
    if name == "fields":
        return o if n is None else _struct(strategy, kind, o, n)
    if n is None:
        return o
    if name == "last_non_null":
        return n
    if name == "first_non_null":
        return n if o is None else o
    if name in ("append", "union", "collect"):
        return _list(strategy, o or (), (n,) if name == "collect" else n)
    if o is None:
        return n
    if name in ("max", "min"):
        return {"max": max, "min": min}[name](o, n, key=rank)
    if name == "join_text":
        return o + strategy.separator + n
    return _sum(kind, o, n) if name == "sum" else {"bool_and": o and n, "bool_or": o or n}[name]


def _list(strategy: Strategy, o: Row, n: Row) -> Row:
    out = o + n
    if strategy.name == "union":
        out = tuple(each for i, each in enumerate(out) if each not in out[:i])
    if strategy.limit is not None and len(out) > strategy.limit:
        refuse("ListTooLong")
    return out


def _struct(strategy: Strategy, kind: Mapping[str, Any], o: Any, n: Any) -> Row:
    held = dict(o or ())
    return tuple(
        (name, cell(part_of(strategy, name), kind[name], held.get(name), each, new=o is None)) for name, each in n
    )


def part_of(strategy: Strategy, name: str) -> Strategy:
    """Return the strategy of a struct's field."""
    return dict(strategy.parts or ()).get(name, strategy.default or last_non_null())


def _sum(kind: str, o: Any, n: Any) -> Any:
    if kind.startswith("float"):
        with np.errstate(all="ignore"):
            return canonical(float(np.dtype(kind).type(o) + np.dtype(kind).type(n)))
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[len("decimal(") : -1].split(","))
        out = EXACT.add(o, n)
        inside = abs(out.scaleb(scale, EXACT)) < 10**precision
    else:
        bounds = np.iinfo("int64" if kind.startswith("duration") else kind)
        out = o + n
        inside = bounds.min <= out <= bounds.max
    if not inside:
        refuse("MergeOverflow")
    return out


# Marks: records of the event that set a row, a group or a cell


@dataclass(frozen=True)
class Mark:
    """The event that set a row, a group or a cell.

    A mark has the event's order in comparable and plain form, its seq, and its row, or None for a delete.
    """

    base: tuple[tuple[Any, ...], ...]
    order: Row
    seq: int | None
    own: Row | None


@dataclass
class Merged(Held):
    """The state of a key under merging. ``base`` and ``order`` are those of ``mark`` or of the latest delete.

    ``mark``: the event that set the order of the row; with cell versions, the greatest live event.  ``tombstone``: with
    cell versions, the latest delete.  ``groups``: the mark of each column group.  ``cells``: the mark of each cell by
    column, with nested fields.
    """

    mark: Mark | None = None
    groups: list[Mark | None] = field(default_factory=list)
    tombstone: Mark | None = None
    cells: dict[str, Mark | None] = field(default_factory=dict)


def strategy_of(input: Input, column: str) -> Strategy:
    """Return the merge strategy of a column."""
    spec = input.spec
    if spec.merge == "first_row":
        return first()
    merge = spec.merge if isinstance(spec.merge, Merge) else Merge()
    grouped = any(column in columns for _, columns in spec.groups)
    return merge.strategies.get(column) or merge.default or (last() if grouped else last_non_null())


def merged_columns(input: Input) -> list[str]:
    """Return the columns of a row that are merged. Key, order and derived columns are not among them."""
    spec = input.spec
    others = {*spec.key, *spec.order_by, *(name for name, _ in spec.derive), *(c for of, _ in spec.groups for c in of)}
    others |= {spec.ingested}
    return [column for column in input.row if column not in others]


def below(input: Input, new: Mark, old: Mark) -> bool:
    """Return whether ``new`` is older than ``old``.

    The order decides. For equal orders, the seq decides if the spec uses it for ties.
    """
    if new.base != old.base:
        return new.base < old.base
    return input.spec.tie == "last" and input.spec.seq is not None and rank(new.seq) < rank(old.seq)


def compare(input: Input, new: Mark, old: Mark, sizes: tuple[Any, Any] | None = None) -> str:
    """Return how an event compares with the event that set the current value.

    ``sizes``: the values of both events with ``tie="greatest"``.
    """
    spec = input.spec
    if new.base != old.base or below(input, new, old):
        return OLDER if below(input, new, old) else FOLDED
    if spec.tie == "error":
        refuse("TieRefused")
    if spec.tie == "last":
        return FOLDED
    if spec.tie == "first":
        return FOLDED if spec.seq is not None and rank(new.seq) < rank(old.seq) else TIE
    mine, its = sizes or (new.own is not None, old.own is not None)
    return FOLDED if mine >= its else TIE


# Fold


class Fold:
    """The fold of one key at one time. Call ``take`` for each event, and then ``close``."""

    def __init__(self, input: Input, held: Merged | None, over: bool) -> None:
        self.input, self.spec = input, input.spec
        self.before = held.row if held else None
        kept = copy.deepcopy(held) if held and input.keeps_order and not over else None
        nobody = (None,) * len(self.spec.order_by)
        self.now = kept or Merged((), nobody, None, None, groups=[None] * len(self.spec.groups))
        self.now.row = None if over else self.before
        self.began = copy.deepcopy(self.now)
        self.refusals = set[str]()
        grouped = {column for _, columns in self.spec.groups for column in columns}
        self.merged = merged_columns(input)
        self.rest = [column for column in self.merged if column not in grouped]
        self.ordered = not self.spec.groups or bool(self.spec.order_by) or self.spec.late == "advance"

    def take(self, event: Event) -> bool:
        """Fold the event and return True. If the event is refused, set ``refusals`` to the reasons and return False."""
        self.refusals = set()
        mark = self.inherited(event)
        return self.cells(event, mark) if self.spec.versions == "cell" else self.row_and_groups(event, mark)

    def inherited(self, event: Event) -> Mark:
        """Return the mark of the event. Where an order column is null, the mark has the current order."""
        running = self.now.mark.order if self.now.mark else (None,) * len(event.order)
        order = tuple(old if new is None else new for new, old in zip(event.order, running, strict=True))
        return Mark(event.base[: len(event.base) - len(order)] + ranks(order), order, event.seq, event.row)

    def asked(self, new: Mark, old: Mark | None, began: Mark | None, sizes: tuple[Any, Any] | None = None) -> bool:
        """Return whether the current mark allows the event, and record the reason if the event is refused.

        ``sizes`` is that of `compare`.

        The verdict shows whether the event lost to the state before the step, or to another event of the step.
        """
        if old is None:
            return True
        found = compare(self.input, new, old, sizes)
        if found == OLDER:
            self.refusals.add("stale" if began is not None and below(self.input, new, began) else "superseded")
        elif found == TIE:
            self.refusals.add("tie_lost")
        return found == FOLDED

    def sizes(self, new: Mark, old: Mark | None, columns: Sequence[str]) -> tuple[Any, Any] | None:
        """Return the values that ``tie="greatest"`` compares: the tracked columns of both events.

        A delete is less than any row.
        """
        if old is None:
            return None
        at = [i for i, column in enumerate(self.input.row) if column in columns and self.spec.counts(column)]
        mine, its = ((0,) if by.own is None else (1, ranks(by.own[i] for i in at)) for by in (new, old))
        return mine, its

    def row_and_groups(self, event: Event, mark: Mark) -> bool:
        """Fold with row versions.

        The event's order of the row decides whether the row changes, and its order of each group decides whether the
        group changes.
        """
        now, spec = self.now, self.spec
        accepted = not self.ordered or self.asked(
            mark, now.mark, self.began.mark, self.sizes(mark, now.mark, self.rest)
        )
        marks = [
            Mark(ranks(order), order, event.seq, event.row) if any(each is not None for each in order) else None
            for order in event.groups
        ]
        open_to = [
            i
            for i, ((_, columns), its) in enumerate(zip(spec.groups, marks, strict=True))
            if its is not None
            and self.asked(its, now.groups[i], self.began.groups[i], self.sizes(its, now.groups[i], columns))
        ]
        if not self.ordered and any(marks):
            accepted = bool(open_to)
        if not accepted and (now.row is None or (event.deletes and spec.deletes == "row")):
            return False
        for i in open_to:
            now.groups[i] = marks[i]
        columns = [column for i in open_to for column in spec.groups[i][1]]
        if event.deletes and spec.deletes == "group":
            if now.row is not None:
                now.row = tuple(None if name in columns else value for name, value in self.named().items())
            return bool(open_to)
        if event.deletes:
            now.row, now.mark = None, mark
            return True
        self.merge(event, [*columns, *(self.rest if accepted else [])], mark)
        if accepted:
            now.mark = mark
        return accepted or bool(open_to)

    def named(self) -> dict[str, Any]:
        """Return the row as a dict by column. If there is no row, all values are null."""
        return dict(zip(self.input.row, self.now.row or (None,) * len(self.input.row), strict=True))

    def merge(self, event: Event, columns: Sequence[str], mark: Mark) -> None:
        """Fold these cells of an event into the row, or create a row from them."""
        new, held = self.now.row is None, self.named()
        given = dict(zip(self.input.row, event.payload, strict=True))
        given |= {c: o for c, o in zip(self.spec.order_by, mark.order, strict=True) if c in given}
        given |= dict.fromkeys((name for name, _ in self.spec.derive), None)
        out = held | {name: given[name] for name in self.spec.key} if new else held
        if self.input.function is not None and columns:  # a merger never sees a refused event
            merged = given if new else self.input.function(held, given)
            out |= {column: canonical(merged[column]) for column in self.merged}
        else:
            for c in columns:
                kind = self.input.types.get(c)
                out[c] = cell(strategy_of(self.input, c), kind, held[c], given[c], c in event.given, new)
        if new and self.spec.merge == "first_row":
            out |= {c: given[c] for c in self.spec.order_by if c in given}
        self.now.row = tuple(out.values())

    # Cell versions

    def cells(self, event: Event, mark: Mark) -> bool:
        """Fold with cell versions.

        An event changes a cell only if it wins against the cell's mark and against the latest delete.
        """
        now = self.now
        if not self.asked(mark, now.tombstone, self.began.tombstone):
            return False
        if event.deletes:
            now.tombstone, now.cells = mark, self.later(now.cells, mark)
            if now.mark is not None and compare(self.input, mark, now.mark) == FOLDED:
                now.row = now.mark = None
            elif now.row is not None:
                now.row = self.without(now.row, now.cells)
            return True
        newer = self.asked(mark, now.mark, self.began.mark)
        values = (
            self.named() if now.row is not None else self.named() | dict(zip(self.spec.key, event.key, strict=True))
        )
        given = dict(zip(self.input.row, event.payload, strict=True))
        filled = False
        for column in self.merged:
            kind, strategy = self.input.types.get(column), strategy_of(self.input, column)
            values[column], now.cells[column], did = self.filled(
                strategy,
                kind,
                (values[column], now.cells.get(column)),
                given[column],
                column in event.given,
                mark,
                self.began.cells.get(column),
            )
            filled = filled or did
        if not newer and not filled:
            return False
        now.row, now.mark = tuple(values.values()), mark if newer else now.mark
        return True

    def filled(
        self, strategy: Strategy, kind: Any, held: tuple[Any, Any], n: Any, given: bool, mark: Mark, began: Any
    ) -> Any:
        """Return the cell, its mark, and whether the event changed the cell.

        ``began`` is the cell's mark when the step began.
        """
        o, by = held
        name = strategy.name
        if (name == "last" and not given) or (name not in ("last", "first") and n is None):
            return o, by, False
        if name in ("last", "last_non_null"):
            # An equal value changes nothing.
            took = self.asked(mark, by, began, (rank(n) > rank(o), True) if self.spec.tie == "greatest" else None)
        elif name in ("first", "first_non_null"):
            took = by is None or self.first_of(mark, by, began, self.spec.tie == "greatest" and rank(n) > rank(o))
        else:
            return cell(strategy, kind, o, n), by or mark, True
        return (n, mark, True) if took else (o, by, False)

    def first_of(self, new: Mark, old: Mark, began: Mark | None, greater: bool) -> bool:
        """Return whether an event precedes the event that set a cell. Record the reason if the event is refused.

        ``greater``: whether the event's value is greater.
        """
        found = self.precedes(new, old, greater)
        if found == OLDER:
            late = began is not None and self.precedes(new, began, greater) == OLDER
            self.refusals.add("stale" if late else "superseded")
        elif found == TIE:
            self.refusals.add("tie_lost")
        return found == FOLDED

    def precedes(self, new: Mark, old: Mark, greater: bool) -> str:
        """Compare two marks like `compare`, but let the least order win."""
        if new.base != old.base:
            return FOLDED if new.base < old.base else OLDER
        if self.spec.tie == "error":
            refuse("TieRefused")
        mine, its = rank(new.seq), rank(old.seq)
        if greater or mine < its:
            return FOLDED
        return OLDER if mine > its else TIE

    def later(self, cells: Mapping[str, Mark | None], mark: Mark) -> dict[str, Mark | None]:
        """Return the cells that a delete keeps."""
        return {name: by for name, by in cells.items() if by and compare(self.input, mark, by) != FOLDED}

    def without(self, row: Row, cells: Mapping[str, Mark | None]) -> Row:
        """Return the row. Cells without a mark are null."""
        return tuple(
            None if name in self.merged and name not in cells else value
            for name, value in zip(self.input.row, row, strict=True)
        )

    # End of a time

    def close(self, folded: Event | None, stamp: int) -> tuple[Merged, bool]:
        """Return the key's new state, and whether its row changed. ``stamp``: the time of the events."""
        now, spec, input = self.now, self.spec, self.input
        if now.row is not None:
            out = self.named()
            if spec.merge != "first_row" and now.mark is not None and folded is not None:
                out |= {c: o for c, o in zip(spec.order_by, now.mark.order, strict=True) if c in out}
            for (of, _), by in zip(spec.groups, now.groups, strict=True):
                out |= {c: o for c, o in zip(of, by.order if by else (None,) * len(of), strict=True) if c in out}
            for name, _ in spec.derive:
                out[name] = canonical(input.derive[name](out))
            out |= {} if spec.ingested is None else {spec.ingested: stamp}
            now.row = tuple(out.values())
        changed = not same(input, self.before, now.row)
        last_word = now.mark if now.row is not None else now.tombstone or now.mark
        if last_word is not None:
            now = replace(now, base=last_word.base, order=last_word.order, seq=last_word.seq)
        return replace(now, row=now.row if changed else self.before), changed


def fold(input: Input, held: Merged | None, events: list[Event], over: bool = False) -> Merged:
    """Set the verdict of every event of one key and time. Return the key's new state, or raise the refusals."""
    this, last_folded = Fold(input, held, over), None
    for event in sorted(events, key=lambda event: (event.base, rank(event.seq))) if input.spec.time else events:
        if this.take(event):
            event.verdict, last_folded = "superseded", event
        elif this.refusals <= {"stale"}:
            event.verdict = "stale"
        else:
            tie = "tie_lost" in this.refusals and "superseded" not in this.refusals
            event.verdict = "tie_lost" if tie else "superseded"
    now, changed = this.close(last_folded, events[0].stamp)
    if last_folded is not None:
        last_folded.verdict = "applied" if changed else "noop"
    for event in events:
        event.winner = now.order
    return now


def merged_tombstone(input: Input, tomb: Held, its: Any) -> Merged:
    """Return the tombstone of a key that is missing in full contents.

    The groups of the key keep their orders, and get the seq of the delete.
    """
    mark, cells = Mark(tomb.base, tomb.order, tomb.seq, None), input.spec.versions == "cell"
    groups = [by and replace(by, seq=tomb.seq, own=None) for by in its.groups]
    return Merged(mark.base, mark.order, mark.seq, None, None if cells else mark, groups, mark if cells else None)

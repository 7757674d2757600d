"""Define ddflow's semantics in plain dicts and lists, as the reference that every fast path is compared with.
>>> from ddflow.plan.inputs.spec import Upsert, tombstone
>>> input = Input(("id", "at", "op", "city"), Upsert(key="id", order_by="at", delete=tombstone("op", "D")))
>>> people = collection("people", input)
>>> twin = Twin({"people": input}, {"by_city": people.project(["city"]).count()})
>>> out = twin.step({"people": [{"id": 1, "at": 5, "op": "U", "city": "Bern"}]}, time=1)
>>> out.updates["by_city"]
{(('Bern', 1), 1): 1}
>>> out = twin.step({"people": [{"id": 1, "at": 4, "op": "D"}, {"id": 1, "at": 6, "op": "U", "city": "Basel"}]}, time=2)
>>> sorted(out.updates["by_city"].items())
[((('Basel', 1), 2), 1), ((('Bern', 1), 2), -1)]
>>> dict(out.verdicts)
{'stale': 1, 'applied': 1}
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from operator import itemgetter
from typing import Any

from expiry_rules import expire, moved, refuse
from merging_rules import fold, merged_tombstone
from rules import Condition, Event, Held, Input, Refused, Row, canonical, rank, ranks, resolve
from watermark_rules import advance, is_late, judge, value_of
from window_rules import Call

CLOSED = 2**63 - 1
NEVER = -(2**63)
NOW = "now()"
"""The name under which a state has the time of the step, as its only row."""

Collection = Counter[Row]
Updates = dict[tuple[Row, int], int]


@dataclass(frozen=True)
class Node:
    """A collection derived from the inputs' collections, computed from scratch, with the verbs of ``dd.Collection``."""

    columns: tuple[str, ...]
    of: Callable[[Mapping[str, Collection]], Collection]

    def filter(self, keeps: Condition) -> Node:
        """Keep the rows with a true predicate; null is not true."""

        def of(state: Mapping[str, Collection]) -> Collection:
            return Counter({row: n for row, n in self.of(state).items() if keeps(self._named(row)) is True})

        return Node(self.columns, of)

    def filter_by_clock(self, keeps: Callable[[dict[str, Any], int], bool | None]) -> Node:
        """Keep the rows with a true predicate over the row and the time of the step."""

        def of(state: Mapping[str, Collection]) -> Collection:
            (now,) = next(iter(state.get(NOW, ())), (NEVER,))
            return Counter({row: n for row, n in self.of(state).items() if keeps(self._named(row), now) is True})

        return Node(self.columns, of)

    def project(self, columns: Sequence[str] | Mapping[str, Callable[[Mapping[str, Any]], Any]]) -> Node:
        """Compute other columns of the same rows; multiplicities of equal rows add up."""

        def of(state: Mapping[str, Collection]) -> Collection:
            out: Collection = Counter()
            for row, n in self.of(state).items():
                named = self._named(row)
                if isinstance(columns, Mapping):
                    out[tuple(canonical(compute(named)) for compute in columns.values())] += n
                else:
                    out[tuple(named[name] for name in columns)] += n
            return without_zeros(out)

        return Node(tuple(columns), of)

    def count(self, by: Sequence[str] | None = None, name: str = "count") -> Node:
        """Give one row per group with its multiplicity as a column; a group with multiplicity zero is absent."""
        groups = self.project(list(self.columns if by is None else by))
        return Node(
            (*groups.columns, name), lambda state: Counter({(*group, n): 1 for group, n in groups.of(state).items()})
        )

    def agg(self, by: Sequence[str], **aggregates: Callable[[list[tuple[dict[str, Any], int]]], Any]) -> Node:
        """Apply functions to each group's rows and multiplicities; a group with total multiplicity zero is absent."""

        def of(state: Mapping[str, Collection]) -> Collection:
            groups: dict[Row, list[tuple[dict[str, Any], int]]] = defaultdict(list)
            for row, n in self.of(state).items():
                named = self._named(row)
                groups[tuple(named[name] for name in by)].append((named, n))
            return Counter(
                {
                    (*group, *(canonical(each(rows)) for each in aggregates.values())): 1
                    for group, rows in groups.items()
                    if sum(n for _, n in rows)
                }
            )

        return Node((*by, *aggregates), of)

    def join(self, right: Node, on: Mapping[str, str], how: str = "inner", condition: Condition | None = None) -> Node:
        """Pair rows with equal keys that are not null and a true condition; then add unmatched rows as ``how`` says."""
        alone = [name for name in right.columns if on.get(name) != name]

        def of(state: Mapping[str, Collection]) -> Collection:
            out, found, sides = Counter[Row](), (set[Row](), set[Row]()), (self.of(state), right.of(state))
            for row, n in sides[0].items():
                for other, m in sides[1].items():
                    a, b = self._named(row), right._named(other)
                    key = [a[name] for name in on]
                    equal = key == [b[name] for name in on.values()] and None not in key
                    if equal and (condition is None or condition(b | a) is True):
                        out[(*row, *(b[name] for name in alone))] += n * m
                        found[0].add(row)
                        found[1].add(other)
            lonely = [
                Counter({row: n for row, n in its.items() if row not in f}) for its, f in zip(sides, found, strict=True)
            ]
            if how in ("semi", "anti"):
                return lonely[0] if how == "anti" else sides[0] - lonely[0]
            if how in ("left", "full"):
                out.update({(*row, *[None] * len(alone)): n for row, n in lonely[0].items()})
            if how in ("right", "full"):
                for other, n in lonely[1].items():
                    b = right._named(other)
                    out[
                        (
                            *(b[name] if on.get(name) == name else None for name in self.columns),
                            *(b[name] for name in alone),
                        )
                    ] += n
            return without_zeros(out)

        return Node(self.columns if how in ("semi", "anti") else (*self.columns, *alone), of)

    def asof(self, right: Node, on: Mapping[str, str], at: str, how: str = "inner") -> Node:
        """Extend each row with the nearest right row of its key; of equal moments, the first row by its columns."""
        mine, way, its = at.split()
        alone = [name for name in right.columns if on.get(name) != name and not mine == its == name]

        def of(state: Mapping[str, Collection]) -> Collection:
            out, partners = Counter[Row](), right.of(state)
            assert all(n > 0 for n in partners.values())
            for row, n in self.of(state).items():
                assert n > 0
                named, found = self._named(row), list[tuple[Any, Any, Row]]()
                for other in partners:
                    there = right._named(other)
                    key, moments = [named[name] for name in on], (rank(named[mine]), rank(there[its]))
                    before, same = moments[1] < moments[0], moments[1] == moments[0]
                    meets = before if ">" in way else not before and not same
                    met = key == [there[name] for name in on.values()] and (0,) not in moments and None not in key
                    if met and (meets or (same and "=" in way)):
                        found.append((moments[1], ranks(other), tuple(there[name] for name in alone)))
                nearest = (max if ">" in way else min)((each[0] for each in found), default=None)
                best = min((each for each in found if each[0] == nearest), key=itemgetter(1), default=None)
                if best or how == "left":
                    out[(*row, *(best[2] if best else [None] * len(alone)))] += n
            return out

        return Node((*self.columns, *alone), of)

    def consolidate(self) -> Node:
        """Return the same collection."""
        return self

    def concat(self, *others: Node) -> Node:
        """Add up multiplicities."""

        def of(state: Mapping[str, Collection]) -> Collection:
            out: Collection = Counter()
            for part in (self, *others):
                for row, n in part.of(state).items():
                    out[row] += n
            return without_zeros(out)

        return Node(self.columns, of)

    def negate(self) -> Node:
        """Negate every multiplicity."""
        return Node(self.columns, lambda state: Counter({row: -n for row, n in self.of(state).items()}))

    def threshold(self, function: Callable[[int], int]) -> Node:
        """Apply the function to every multiplicity."""

        def of(state: Mapping[str, Collection]) -> Collection:
            return without_zeros(Counter({row: function(n) for row, n in self.of(state).items()}))

        return Node(self.columns, of)

    def distinct(self) -> Node:
        """Keep each row with a positive multiplicity once."""
        return self.threshold(lambda n: int(n > 0))

    def union(self, *others: Node, all: bool = False) -> Node:
        """Return rows of any collection; a negative multiplicity counts as zero."""
        return self._set(others, sum if all else lambda given: int(any(given)))

    def except_(self, *others: Node, all: bool = False) -> Node:
        """Return rows of this collection that no other has."""
        if all:
            return self._set(others, lambda given: max(given[0] - sum(given[1:]), 0))
        return self._set(others, lambda given: int(given[0] > 0 and not any(given[1:])))

    def intersect(self, *others: Node, all: bool = False) -> Node:
        """Return rows that all collections have."""
        return self._set(others, min if all else lambda given: int(min(given) > 0))

    def _set(self, others: Sequence[Node], function: Callable[[list[int]], int]) -> Node:
        def of(state: Mapping[str, Collection]) -> Collection:
            sides = [side.of(state) for side in (self, *others)]
            rows = {row for side in sides for row in side}
            return without_zeros(Counter({row: function([max(side[row], 0) for side in sides]) for row in rows}))

        return Node(self.columns, of)

    def top(
        self, k: int, by: Sequence[str], partition_by: Sequence[str] = (), offset: int = 0, rank_name: str | None = None
    ) -> Node:
        """Return the first rows of each group, as often as they have ranks; with a rank, one row per rank."""
        ways = [ordering(text) for text in by]
        ways += [(name, False, True) for name in self.columns if name not in [each[0] for each in ways]]

        def of(state: Mapping[str, Collection]) -> Collection:
            groups: defaultdict[Row, list[Row]] = defaultdict(list)
            for row, n in self.of(state).items():
                assert n > 0
                groups[tuple(self._named(row)[name] for name in partition_by)] += [row] * min(n, offset + k)
            out: Collection = Counter()
            for rows in groups.values():
                for name, descending, nulls_first in reversed(ways):
                    at = self.columns.index(name)
                    rows.sort(key=lambda row: rank(row[at]), reverse=descending)
                    rows.sort(key=lambda row: (row[at] is None) != nulls_first)
                for place, row in enumerate(rows[: offset + k]):
                    if place >= offset:
                        out[row if rank_name is None else (*row, place + 1)] += 1
            return out

        return Node(self.columns if rank_name is None else (*self.columns, rank_name), of)

    def over(self, partition_by: Sequence[str], order_by: Sequence[str], calls: Mapping[str, Call]) -> Node:
        """Add results of window functions; a row of multiplicity n has n places. The other columns break ties."""
        ways = [ordering(text) for text in order_by]
        named = [each[0] for each in ways]
        ties = [(name, False, True) for name in self.columns if name not in named]

        def of(state: Mapping[str, Collection]) -> Collection:
            groups: defaultdict[Row, list[Row]] = defaultdict(list)
            for row, n in self.of(state).items():
                assert n > 0
                groups[tuple(self._named(row)[name] for name in partition_by)] += [row] * n
            out: Collection = Counter()
            for rows in groups.values():
                for name, descending, nulls_first in reversed([*ways, *ties]):
                    at = self.columns.index(name)
                    rows.sort(key=lambda row: rank(row[at]), reverse=descending)
                    rows.sort(key=lambda row: (row[at] is None) != nulls_first)
                its = [self._named(row) for row in rows]
                keys = [[rank(row[name]) for name in named] for row in its]
                values = None
                signs = [row[named[0]] for row in its] if len(ways) == 1 else []
                if all(each is None or isinstance(each, int | float | Decimal) for each in signs):
                    values = [each if each is None or not ways[0][1] else -each for each in signs]
                for i, row in enumerate(rows):
                    out[(*row, *(canonical(each.result(its, keys, values, i)) for each in calls.values()))] += 1
            return out

        return Node((*self.columns, *calls), of)

    def versions(
        self,
        key: Sequence[str],
        order_by: str | Sequence[str],
        delete: Condition | None = None,
        ignore: Sequence[str] = (),
        valid_from: str = "valid_from",
        valid_to: str = "valid_to",
        hidden: str | None = None,
    ) -> Node:
        """Return type-2 history: the greatest row of each key and order; of equal successive rows only the first.

        ``hidden``: a column that only ``delete`` reads.  The first order column gives the times of the versions.
        """
        by = [order_by] if isinstance(order_by, str) else list(order_by)
        counting = [name for name in self.columns if name not in (*key, *ignore, *by, hidden)]
        shown = [name for name in self.columns if name != hidden]

        def of(state: Mapping[str, Collection]) -> Collection:
            keys: defaultdict[Row, defaultdict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
            for row, n in self.of(state).items():
                assert n > 0
                named = self._named(row)
                keys[tuple(named[name] for name in key)][tuple(named[name] for name in by)].append(row)
            out: Collection = Counter()
            for events in keys.values():
                open_version: Row | None = None
                for order in sorted(events, key=lambda each: [rank(value) for value in each]):
                    live = [row for row in events[order] if delete is None or delete(self._named(row)) is not True]
                    row = self._named(max(live, key=ranks)) if live else None
                    if open_version is not None:
                        before = dict(zip([*shown, valid_from], open_version, strict=True))
                        # Compare as lists, because a list finds NaN equal to the same NaN.
                        if row is not None and [row[name] for name in counting] == [before[name] for name in counting]:
                            continue
                        out[(*open_version, order[0])] += 1
                    open_version = None if row is None else (*(row[name] for name in shown), order[0])
                if open_version is not None:
                    out[(*open_version, None)] += 1
            return out

        return Node((*shown, valid_from, valid_to), of)

    def _named(self, row: Row) -> dict[str, Any]:
        return dict(zip(self.columns, row, strict=True))


@dataclass
class LookedUp:
    """The matches already given to left rows.

    ``keys`` extract the key of a left and of a right row.  ``shown`` extracts the columns of a match.
    """

    keys: tuple[Callable[[Row], Row], Callable[[Row], Row]]
    shown: Callable[[Row], Row]
    inner: bool
    nothing: Row
    given: dict[Row, Row | None] = field(default_factory=dict)

    def at(self, left: Collection, right: Collection) -> Collection:
        """Return the output at the next time, when both sides hold these rows."""
        given: dict[Row, Row | None] = {}
        for row, n in left.items():
            assert n > 0
            given[row] = self.given[row] if row in self.given else self._found(row, right)
        self.given = given
        rows = {row: found for row, found in given.items() if found is not None or not self.inner}
        return Counter({(*row, *(self.nothing if found is None else found)): left[row] for row, found in rows.items()})

    def _found(self, row: Row, right: Collection) -> Row | None:
        key = self.keys[0](row)
        found = [] if None in key else [other for other in right if self.keys[1](other) == key]
        if len(found) > 1 or any(right[other] != 1 for other in found):
            raise Refused("NotUnique")
        return self.shown(found[0]) if found else None


@dataclass
class Feed:
    """An input of differences with its ``columns``, the multiplicity ``diff`` of a row, and the ``time`` column.

    Only hold-back mode has a time column.
    """

    columns: tuple[str, ...]
    diff: Callable[[Mapping[str, Any]], int]
    time: str | None = None
    late: str = "error"
    held: Collection = field(default_factory=Counter)
    pending: list[tuple[int, Row, int]] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    frontier: int = NEVER
    greatest: int | None = None

    def step(self, rows: Sequence[Mapping[str, Any]], time: int) -> None:
        """Apply all rows at ``time`` (epoch mode)."""
        self.pending += [(time, tuple(row[name] for name in self.columns), self.diff(row)) for row in rows]
        self.advance(time + 1)

    def take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Hold rows back until their time closes; drop a late row, or move it to the frontier."""
        before = self.frontier
        for row in rows:
            at = row[self.time or ""]
            if at < before and self.late == "drop":
                self.verdicts["late"] += 1
                continue
            self.pending.append((max(at, before), tuple(row[name] for name in self.columns), self.diff(row)))
            self.greatest = max(at, at if self.greatest is None else self.greatest)

    def advance(self, frontier: int) -> list[tuple[int, Collection, Collection]]:
        """Close the times below ``frontier``; return each with the collections before and after it."""
        out = []
        self.frontier = frontier
        due = [each for each in self.pending if each[0] < frontier]
        self.pending = [each for each in self.pending if each[0] >= frontier]
        for time in sorted({time for time, _, _ in due}):
            before = Counter(self.held)
            for at, row, diff in due:
                if at == time:
                    self.held[row] += diff
                    self.verdicts["applied"] += 1
            self.held = without_zeros(self.held)
            out.append((time, before, Counter(self.held)))
        return out


def ordering(text: str) -> tuple[str, bool, bool]:
    """Parse a text such as ``"n desc nulls last"`` into column, descending, and nulls first."""
    name, *said = text.split()
    return name, "desc" in said, "first" in said or not ("desc" in said or "last" in said)


def collection(name: str, input: Input) -> Node:
    """Return an input's own collection, the start of a plan."""
    return Node(input.row, lambda collections: collections[name])


def misordered(spec: Any, event: Mapping[str, Any]) -> bool:
    """Return whether an event is bad because it does not give exactly one group an order."""
    given = [any(event[column] is not None for column in of) for of, _ in spec.groups]
    return bool(spec.exclusive) and sum(given) != 1


def without_zeros(collection: Collection) -> Collection:
    """Drop rows with multiplicity zero."""
    return Counter({row: n for row, n in collection.items() if n})


def difference(before: Collection, after: Collection, time: int) -> Updates:
    """Return the updates at ``time`` that lead from ``before`` to ``after``."""
    return {(row, time): after[row] - before[row] for row in {*before, *after} if after[row] != before[row]}


@dataclass
class Out:
    """The result of one call: updates by output, and verdicts as counts and as rows."""

    updates: dict[str, Updates]
    verdicts: Counter[str] = field(default_factory=Counter)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    absent: int = 0

    def tell(
        self, input: str, numbers: tuple[int, int | None], key: Row, verdict: str, time: int | None, winner: Row
    ) -> None:
        """Add one verdict to the counts and as a row (arrival, seq, *key, verdict, time, *winner's order)."""
        self.verdicts[verdict] += 1
        self.rows[input].append((*numbers, *key, verdict, time, *winner))


@dataclass
class State:
    """The state that a refused call restores, besides the history."""

    held: dict[str, dict[Row, Held]]
    pending: list[Event] = field(default_factory=list)
    arrived: Counter[str] = field(default_factory=Counter)
    greatest: dict[str, int] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    frontier: int = NEVER
    marks: dict[str, Any] = field(default_factory=dict)
    """The greatest value of each watermark's column in earlier steps."""
    orders: dict[str, Any] = field(default_factory=dict)
    lapsed: defaultdict[str, dict[Row, Held]] = field(default_factory=lambda: defaultdict(dict))
    lost: defaultdict[str, Collection] = field(default_factory=lambda: defaultdict(Counter))
    """The greatest order of each input, the rows that the step expires, and rows expired without a retraction."""


class Twin:
    """An opened plan: ``step`` in epoch mode, ``push`` and ``advance_to`` in hold-back mode, `read` in both.

    It resolves event by event and computes every output from scratch out of the inputs' collections. Updates are the
    difference of two successive collections. So it cannot have the bugs of an incremental engine. If the two differ,
    either the twin is right or docs/semantics.md is unclear.

    The twin covers every option of a spec. Equality is canonical (one NaN, -0.0 == 0.0, null is a value), which holds
    only for values after `canonical`. It reads no Arrow and parses no SQL: predicates are Python functions. It forgets
    nothing, so any time can be read.
    """

    def __init__(self, inputs: Mapping[str, Input], outputs: Mapping[str, Node], ends: int | None = None) -> None:
        """``ends``: with temporal conditions, a time after which no condition changes."""
        self.inputs, self.outputs, self.ends = dict(inputs), dict(outputs), ends
        self.readable = {name: collection(name, input) for name, input in self.inputs.items()} | self.outputs
        self.holds_back = any(input.spec.time for input in self.inputs.values())
        self.state = State({name: {} for name in self.inputs})
        self.history: list[tuple[int, dict[str, Collection]]] = []
        self.put_out: list[dict[str, Collection]] = []

    def step(self, inputs: Mapping[str, Sequence[Mapping[str, Any]]], time: int) -> Out:
        """Resolve all events at ``time``, which must be above the last step's (epoch mode)."""
        if self.holds_back:
            raise Refused("WrongMode")
        if time < self.state.frontier or time == CLOSED:
            raise Refused("TimeWentBack")

        def act(out: Out) -> None:
            self._take(inputs, time, out)
            idle = not self.state.pending
            self._close(time + 1, out)
            if idle and any(input.spec.expiry for input in self.inputs.values()):
                self._judge_time(time, [], out)

        return self._whole(act)

    def replace(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        time: int,
        scope: Condition | None = None,
        order: Mapping[str, Any] | None = None,
        once: bool = True,
    ) -> Out:
        """Replace the input's rows within the scope by these rows at ``time`` (epoch mode).

        ``order``: the order of the tombstones of absent keys, by column.  ``once``: allow one row per key. Without it,
        the rows are a log and resolve as on an empty input (restate).
        """
        if self.holds_back:
            raise Refused("WrongMode")
        if time < self.state.frontier or time == CLOSED:
            raise Refused("TimeWentBack")

        def act(out: Out) -> None:
            input, held, reasons = self.inputs[name], self.state.held[name], set[str]()
            self._expire(name)
            try:
                self._take({name: rows}, time, out)
            except Refused as refused:
                reasons |= refused.kinds
            events, self.state.pending, self.state.frontier = self.state.pending, [], time + 1
            inside = lambda row: scope is None or scope(dict(zip(input.row, row, strict=True))) is True  # noqa: E731
            bad = self._misordered(name, rows)
            if not all(inside(row) for row in (*(event.payload for event in events), *bad.elements())):
                reasons.add("OutOfScope")
            places = [input.row.index(column) for column in input.spec.key]
            named = [event.key for event in events] + [tuple(row[i] for i in places) for row in bad.elements()]
            if once and len(set(named)) < len(named):
                reasons.add("DuplicateKeys")
            absent = [key for key, its in held.items() if its.row is not None and inside(its.row) and key not in named]
            if absent and (input.spec.order_by or input.spec.seq) and order is None and not events:
                reasons.add("SpecError")
            if reasons:
                raise Refused(*reasons)
            for key in absent:
                its = held.pop(key)
                if input.keeps_order:
                    held[key] = self._tombstone_of(input, its, events, order)
            out.absent = len(absent)
            self._judge_time(time, events, out, over=True)

        return self._whole(act)

    def _misordered(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Collection:
        """Return the rows that are bad because they do not give one group an order; their keys count as present."""
        input, out = self.inputs[name], Counter[Row]()
        for incoming in rows:
            event = {column: canonical(incoming.get(column)) for column in input.columns}
            null = input.spec.null_key != "keep" and any(event[column] is None for column in input.spec.key)
            out[tuple(event.get(column) for column in input.row)] += misordered(input.spec, event) and not null
        return +out

    def _tombstone_of(self, input: Input, its: Held, events: list[Event], order: Mapping[str, Any] | None) -> Held:
        """Return the tombstone of a key that full contents lack; ``its`` is its old state."""
        spec = input.spec
        if order is not None:
            given = tuple(order[column] for column in spec.order_by)
            tomb = Held(ranks(given), given, order[spec.seq] if spec.seq else None, None)
        elif events:
            greatest = max(events, key=lambda event: (event.base, rank(event.seq)))
            tomb = Held(greatest.base, greatest.order, greatest.seq, None)
        else:
            tomb = Held((), (), None, None)
        return merged_tombstone(input, tomb, its) if spec.merges else tomb

    def push(self, inputs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Out:
        """Take events in and close the times that the lateness allows (hold-back mode)."""
        if not self.holds_back:
            raise Refused("WrongMode")

        def act(out: Out) -> None:
            self._take(inputs, None, out)
            self._close(max(self.state.frontier, self._followed()), out)

        return self._whole(act)

    def advance_to(self, frontier: int) -> Out:
        """Close every time below ``frontier`` (hold-back mode)."""
        if not self.holds_back:
            raise Refused("WrongMode")
        if frontier < self.state.frontier:
            raise Refused("TimeWentBack")
        return self._whole(lambda out: self._close(frontier, out))

    def evolve(self, inputs: Mapping[str, Input], outputs: Mapping[str, Node]) -> None:
        """Add columns at the end of inputs, null in all existing rows, and replace the outputs.

        Wider types need no work, because equal values stay equal.
        """
        pads = {name: (None,) * (len(input.row) - len(self.inputs[name].row)) for name, input in inputs.items()}

        def widened(name: str, row: Row) -> Row:
            end = len(row) - (inputs[name].spec.ingested is not None)
            return (*row[:end], *pads[name], *row[end:])

        def padded(name: str, rows: Collection) -> Collection:
            return rows if name == NOW else Counter({widened(name, row): n for row, n in rows.items()})

        state = self.state
        for name in pads:
            for held in (state.held[name], state.lapsed[name]):
                for key, its in held.items():
                    held[key] = replace(its, row=None if its.row is None else widened(name, its.row))
            state.lost[name] = padded(name, state.lost[name])
        state.pending = [replace(event, payload=widened(event.input, event.payload)) for event in state.pending]
        self.history = [(time, {n: padded(n, rows) for n, rows in all_.items()}) for time, all_ in self.history]
        self.put_out = [{name: padded(name, rows) for name, rows in all_.items()} for all_ in self.put_out]
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self.readable = {name: collection(name, input) for name, input in self.inputs.items()} | self.outputs

    def read(self, name: str, as_of: int | None = None) -> Collection:
        """Return the collection at a time, or now: rows with nonzero multiplicities."""
        state: dict[str, Collection] = {input: Counter() for input in self.inputs}
        for time, collections in self.history:
            if as_of is None or time <= as_of:
                state = collections
        return without_zeros(self.readable[name].of(state))

    def changes(self, name: str, after: int, upto: int) -> Updates:
        """Return the updates with ``after < time <= upto``; added to read(after) they give read(upto)."""
        out: Updates = {}
        for time, _ in self.history:
            if after < time <= upto:
                out |= difference(self.read(name, time - 1), self.read(name, time), time)
        return out

    def scd2(self, name: str, key: Sequence[str], since: int) -> Collection:
        """Return each row of a key at ``since`` or later, with its first and last time.

        None as the first time means "before ``since``", as the last time "still".
        """
        columns, out = self.readable[name].columns, Counter[Row]()
        held: dict[Row, tuple[Row, int | None]] = {}
        for time in [since, *(time for time, _ in self.history if time > since), None]:
            now = {tuple(row[columns.index(c)] for c in key): row for row in self.read(name, time)}
            for its, (row, start) in list(held.items()):
                if time is None or now.get(its) != row:
                    out[(*row, start, time, time is None)] += 1
                    del held[its]
            for its in now if time is not None else ():
                held.setdefault(its, (now[its], None if time == since else time))
        return out

    def _whole(self, act: Callable[[Out], None]) -> Out:
        """Run a call completely or not at all."""
        before, times = copy.deepcopy(self.state), len(self.history)
        out = Out({name: {} for name in self.outputs}, rows={name: [] for name in self.inputs})
        out.updates |= {extra: {} for extra in map(self._extra, self.inputs) if extra}
        try:
            act(out)
        except Refused:
            self.state = before
            del self.history[times:], self.put_out[times:]
            raise
        self.state.totals.update(out.verdicts)
        return out

    def _extra(self, name: str) -> str | None:
        """Return the name of the output for an input's stale events, or None."""
        return {"drop": None, "mark": f"{name}.events", "side": f"{name}.stale"}[self.inputs[name].spec.stale]

    def _take(self, inputs: Mapping[str, Sequence[Mapping[str, Any]]], stamp: int | None, out: Out) -> None:
        """Number the events, resolve bad and late ones, and queue the others.  ``stamp``: the time in epoch mode."""
        reasons: list[str] = []
        frontier = self.state.frontier
        for name, given in inputs.items():
            input, spec = self.inputs[name], self.inputs[name].spec
            for incoming in given:
                event = {column: canonical(incoming.get(column)) for column in input.columns}
                arrival = self.state.arrived[name]
                self.state.arrived[name] += 1
                groups = tuple(tuple(event[column] for column in of) for of, _ in spec.groups)
                numbers = arrival, event[spec.seq] if spec.seq else arrival
                time = stamp if stamp is not None else event[spec.time or ""]
                key, nobody = tuple(event[column] for column in spec.key), (None,) * len(spec.order_by)
                if spec.null_key != "keep" and None in key:
                    if spec.null_key == "error":
                        reasons.append("NullKey")
                    out.tell(name, numbers, key, "bad", None, nobody)
                    continue
                if misordered(spec, event):
                    out.tell(name, numbers, key, "bad", None, nobody)
                    continue
                if time is None or time == CLOSED:
                    reasons.append("SchemaMismatch")
                    continue
                if time < frontier and (spec.late != "advance" or frontier == CLOSED):
                    if spec.late != "drop":
                        reasons.append("LateEvent")
                    out.tell(name, numbers, key, "late", None, nobody)
                    continue
                if is_late(spec, self.state.marks.get(name), value_of(input, event, input.deletes(event))):
                    if spec.late == "error":
                        reasons.append("LateEvent")
                    out.tell(name, numbers, key, "late", None, nobody)
                    continue
                order = tuple(event[column] for column in spec.order_by)
                event |= {} if spec.ingested is None else {spec.ingested: max(time, frontier)}
                self.state.pending.append(
                    Event(
                        input=name,
                        numbers=numbers,
                        key=key,
                        payload=tuple(event[column] for column in input.row),
                        deletes=input.deletes(event),
                        base=ranks((time, *order) if spec.late == "advance" else order),
                        order=order,
                        seq=event[spec.seq] if spec.seq else None,
                        stamp=max(time, frontier),
                        given=frozenset(incoming),
                        groups=groups,
                    )
                )
                if time >= frontier:
                    self.state.greatest[name] = max(time, self.state.greatest.get(name, NEVER))
        if reasons:
            raise Refused(*reasons)

    def _followed(self) -> int:
        """Return the frontier that the lateness allows: behind the greatest times seen, by the slowest input."""
        lateness = {name: input.spec.lateness for name, input in self.inputs.items()}
        if all(less is None for less in lateness.values()):
            return NEVER
        seen = self.state.greatest
        return min(seen.get(name, NEVER) - less for name, less in lateness.items() if less is not None)

    def _close(self, frontier: int, out: Out) -> None:
        """Resolve queued events before ``frontier``, one time after the other."""
        due = [event for event in self.state.pending if event.stamp < frontier]
        self.state.pending = [event for event in self.state.pending if event.stamp >= frontier]
        began, self.state.frontier = max(self.state.frontier, 0), frontier
        times = {event.stamp for event in due}
        if self.ends is not None:  # a row can come or go at any time, or in epoch mode at the time of the step
            times |= {*range(began if self.holds_back else frontier - 1, min(frontier, self.ends))}
        for time in sorted(times):
            self._judge_time(time, [event for event in due if event.stamp == time], out)

    def _judge_time(self, time: int, events: list[Event], out: Out, over: bool = False) -> None:
        for name, input in self.inputs.items():
            mine = [event for event in events if event.input == name]
            held, rivals = self.state.held[name], defaultdict(list)
            lapsed = self._expire(name)
            if input.spec.expiry and not over:
                refuse(input.spec, held, self.state.orders.get(name), mine)
            judge(input, held, self.state.marks.get(name), mine)
            for event in mine:
                if not event.verdict:
                    rivals[event.key].append(event)
            for key, its_events in rivals.items():
                was, anew = held.pop(key, None) or lapsed.get(key), over or key in lapsed
                now: Any = (fold if input.spec.merges else resolve)(input, was, its_events, anew)
                if key in lapsed and now.row is None:
                    # The row goes because it expired: a delete finds nothing to do.
                    for event in its_events:
                        event.verdict = "noop" if event.verdict == "applied" else event.verdict
                if now.row is not None or input.keeps_order:
                    held[key] = now
            for event in mine:
                out.tell(name, event.numbers, event.key, event.verdict, time, event.winner)
            self._tell_stale(name, mine, time, out)
            self.state.marks[name] = advance(input, self.state.marks.get(name), mine)
            if input.spec.expiry:
                self.state.orders[name] = moved(self.state.orders.get(name), mine)
        self.state.lapsed.clear()
        before = {name: self.shown(name) for name in self.outputs}
        self.history.append(
            (
                time,
                {
                    name: Counter({held.row: 1 for held in keys.values() if held.row is not None})
                    for name, keys in self.state.held.items()
                }
                | {NOW: Counter({(time,): 1})},
            )
        )
        self.put_out.append({name: rows + self.state.lost[name] for name, rows in self.history[-1][1].items()})
        for name in self.outputs:
            out.updates[name] |= difference(before[name], self.shown(name), time)

    def _expire(self, name: str) -> dict[Row, Held]:
        """Expire rows of an input; return the keys that still need a retraction."""
        input, lapsed = self.inputs[name], self.state.lapsed[name]
        if input.spec.expiry:
            gone = expire(input.spec, self.state.held[name], self.state.orders.get(name))
            if input.spec.expiry.on_expire == "retract":
                lapsed |= gone
            else:
                self.state.lost[name].update(its.row for its in gone.values() if its.row is not None)
        return lapsed

    def shown(self, name: str) -> Collection:
        """Return the sum of an output's updates so far, including rows that expired without a retraction."""
        state = self.put_out[-1] if self.put_out else {key: Counter() for key in (*self.inputs, NOW)}
        return without_zeros(self.readable[name].of(state))

    def _tell_stale(self, name: str, events: list[Event], time: int, out: Out) -> None:
        """Fill the extra output: every event with a mark, or stale events with the winner's order."""
        extra = self._extra(name)
        if extra is None:
            return
        told: Counter[tuple[Row, int]] = Counter()
        for event in events:
            stale = event.verdict == "stale"
            given = event.payload[: len(event.payload) - (self.inputs[name].spec.ingested is not None)]
            if extra.endswith(".events"):
                told[((*given, stale), time)] += 1
            elif stale:
                told[((*given, *event.winner), time)] += 1
        out.updates[extra] |= told


def to_upserts(
    columns: Sequence[str], key: Sequence[str], updates: Sequence[tuple[Row, int, int]], on_conflict: str = "error"
) -> dict[tuple[Row, int], Any]:
    """Return the visible row of each key after each time that changes it.

    ``updates`` are (row, time, diff), in any order. A value is a row, or None after a delete. With ``"all"`` it is a
    Counter of rows, empty after a delete.
    """
    held: dict[Row, Collection] = defaultdict(Counter)
    out: dict[tuple[Row, int], Any] = {}

    def shown(rows: Collection) -> Any:
        if on_conflict == "all":
            return dict(rows)
        if on_conflict == "error":  # several rows are refused below, and structs have no order
            return next(iter(rows), None)
        return max(rows, key=ranks, default=None)

    for time in sorted({time for _, time, _ in updates}):
        before, reasons = {each: shown(rows) for each, rows in held.items()}, set()
        for row, _, diff in (update for update in updates if update[1] == time):
            held[tuple(row[columns.index(name)] for name in key)][row] += diff
        for each in held:
            held[each] = without_zeros(held[each])
            if any(n < 0 for n in held[each].values()):
                reasons.add("NotHeld")
            if on_conflict == "error" and sum(held[each].values()) > 1:
                reasons.add("NotUnique")
            if shown(held[each]) != before.get(each, {} if on_conflict == "all" else None):
                out[each, time] = shown(held[each])
        if reasons:
            raise Refused(*reasons)
    return out

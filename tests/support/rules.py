"""Define the rules of the twin: which values are equal, how values are ordered, and which event wins a key.

`resolve` follows docs/semantics.md, event by event in order of arrival. The verdict of a losing event shows whether it
lost to the state of the key or to another event of the same time. `model` handles steps, times and outputs.

>>> from ddflow.plan.inputs.spec import Upsert
>>> canonical(-0.0), canonical(float("nan")) is NAN
(0.0, True)
>>> rank(None) < rank(-5) < rank(NAN)
True
>>> input = Input(("id", "at", "city"), Upsert(key="id", order_by="at"))
>>> input.row
('id', 'at', 'city')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddflow.plan.inputs.spec import Tombstone, Upsert

NAN = float("nan")

Row = tuple[Any, ...]
Condition = Callable[[Mapping[str, Any]], bool | None]


class Refused(Exception):
    """A refusal of a complete call.

    ``kinds`` has names of ddflow's exception classes; the engine may raise any of these classes.
    """

    def __init__(self, *kinds: str) -> None:
        super().__init__(*kinds)
        self.kinds = set(kinds)


FORGIVEN: set[str] = set()
"""The kinds of refusals that `refuse` ignores.

Tests add kinds to this set, to find out whether the twin has a further reason to refuse a step.
"""


def refuse(kind: str) -> None:
    """Raise `Refused`, unless all its kinds are in ``FORGIVEN``."""
    if kind not in FORGIVEN:
        raise Refused(kind)


def canonical(value: Any) -> Any:
    """Return one representative for all equal values.

    The representative is hashable, and can be compared with ``==`` even inside a tuple.
    """
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple((name, canonical(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(canonical(part) for part in value)
    return value


def rank(value: Any) -> tuple[Any, ...]:
    """Return a sort key for a canonical value, which orders it among the values of its type.

    Null comes first, then values, then NaN.
    """
    return (0,) if value is None else (2,) if value is NAN else (1, value)


def ranks(values: Iterable[Any]) -> tuple[tuple[Any, ...], ...]:
    """Return a composite sort key, compared left to right."""
    return tuple(rank(value) for value in values)


@dataclass(frozen=True)
class Input:
    """An upsert input: its columns, its spec, and its SQL conditions as Python functions of an event.

    The fields ``types``, ``derive`` and ``function`` are used only for merging. ``types`` has the type of each column
    by name (a dict for a struct). ``derive`` has functions of a row. ``function`` is a custom merger of the old and the
    new row.
    """

    columns: tuple[str, ...]
    spec: Upsert
    delete: Condition | None = None
    where: Condition | None = None
    types: Mapping[str, Any] = field(default_factory=dict)
    derive: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    function: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def row(self) -> tuple[str, ...]:
        """Columns of a row of the collection, in the order of the input. The column of ``ingested=`` comes last."""
        spec = self.spec
        stamps = () if spec.ingested is None else (spec.ingested,)
        if spec.value is not None:
            return (*(c for c in self.columns if c in spec.value or c in spec.key), *stamps)
        hidden = {spec.time, spec.seq} | ({spec.delete.column} if isinstance(spec.delete, Tombstone) else set())
        return (*(c for c in self.columns if c not in hidden), *stamps)

    @property
    def counting(self) -> list[int]:
        """Indexes of those row columns whose new values count as a change."""
        spec = self.spec
        if spec.track is not None:
            return [i for i, name in enumerate(self.row) if name in spec.track]
        return [i for i, name in enumerate(self.row) if name not in (*spec.noop_ignore, spec.ingested)]

    @property
    def keeps_order(self) -> bool:
        """True if the state of a key keeps the order of the winner, even after a delete."""
        spec = self.spec
        return spec.late == "advance" if spec.time else bool(spec.order_by or spec.seq or spec.groups)

    @property
    def ties(self) -> bool:
        """True if events of equal order tie. If only the order of arrival decides, no two events are equal in order."""
        return bool(self.spec.order_by) or self.spec.time is not None

    def deletes(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event deletes its key. If the condition is null, the event does not delete."""
        if self.where is not None and self.where(event) is not True:
            return True
        if isinstance(self.spec.delete, Tombstone):
            found, sought = event[self.spec.delete.column], self.spec.delete.value
            if sought is not None:
                return found is not None and bool(found == sought)
            return found if isinstance(found, bool) else found is not None
        return self.delete is not None and self.delete(event) is True


@dataclass(eq=False)
class Event:
    """An event that is not bad and was not dropped as late.

    ``numbers``: its arrival number and its seq.  ``given``: the columns of its batch; ``groups``: its order for each
    column group.
    """

    input: str
    numbers: tuple[int, int | None]
    key: Row
    payload: Row
    deletes: bool
    base: tuple[tuple[Any, ...], ...]
    order: Row
    seq: int | None
    stamp: int
    verdict: str = ""
    winner: Row = ()
    given: frozenset[str] = frozenset()
    groups: tuple[Row, ...] = ()

    @property
    def row(self) -> Row | None:
        return None if self.deletes else self.payload


@dataclass
class Held:
    """The state of a key: the order of the winning event, and its row, or None for a tombstone."""

    base: tuple[tuple[Any, ...], ...]
    order: Row
    seq: int | None
    row: Row | None


def is_stale(spec: Upsert, event: Event, held: Held) -> bool:
    """Return whether the event is older than the state that its key had at the start of the step."""
    if event.base != held.base:
        return event.base < held.base
    return spec.tie == "last" and spec.seq is not None and rank(event.seq) < rank(held.seq)


def beats(input: Input, event: Event, champion: Event | Held) -> bool:
    """Return whether an event that arrives after ``champion`` replaces it."""
    spec = input.spec
    if event.base != champion.base:
        return event.base > champion.base
    if spec.tie == "last":
        return rank(event.seq) >= rank(champion.seq)
    if spec.tie == "first":
        return spec.seq is not None and rank(event.seq) < rank(champion.seq)
    if isinstance(champion, Held):
        return size(input, event.row) >= size(input, champion.row)
    return size(input, event.row) > size(input, champion.row)


def size(input: Input, row: Row | None) -> tuple[Any, ...]:
    """Return the sort key of a row for ``tie="greatest"``.

    The key consists of the columns that count as a change. A row is greater than a delete.
    """
    return (0,) if row is None else (1, ranks(row[i] for i in input.counting))


def resolve(input: Input, held: Held | None, events: list[Event], over: bool = False) -> Held:
    """Set the verdict of every event of one key and time. Return the new state of the key.

    Raise `Refused` for a forbidden tie. With ``over``, the stored order is ignored, as for full contents.
    """
    spec = input.spec
    rival = held if input.keeps_order and not over else None
    fresh = [event for event in events if rival is None or not is_stale(spec, event, rival)]
    if spec.tie == "error":
        bases = [event.base for event in fresh] + ([rival.base] if rival else [])
        if len(bases) > len(set(bases)):
            refuse("TieRefused")
    champion: Event | Held | None = rival
    for event in fresh:
        if champion is None or beats(input, event, champion):
            champion = event
    assert champion is not None
    before = held.row if held else None
    unchanged = same(input, before, champion.row)
    for event in events:
        if event not in fresh:
            event.verdict = "stale"
        elif event is champion:
            event.verdict = "noop" if unchanged else "applied"
        else:
            lost = rival is not None and event.base == rival.base and not beats(input, event, rival)
            event.verdict = "tie_lost" if input.ties and (lost or event.base == champion.base) else "superseded"
        event.winner = champion.order
    return Held(champion.base, champion.order, champion.seq, before if unchanged else champion.row)


def same(input: Input, a: Row | None, b: Row | None) -> bool:
    """Return True if the columns that count as a change are all equal."""
    if a is None or b is None:
        return a is b
    return [a[i] for i in input.counting] == [b[i] for i in input.counting]

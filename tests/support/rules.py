"""Define the twin's rules: equality, order, and the event that wins a key.

`resolve` follows docs/semantics.md, event by event in order of arrival. The verdict of a loser says how it lost, to the
key's state or to a rival of the same time. `model` handles steps, times and outputs.

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
    """A refusal of a whole call; ``kinds`` names ddflow's exception classes, and any of them is right."""

    def __init__(self, *kinds: str) -> None:
        super().__init__(*kinds)
        self.kinds = set(kinds)


FORGIVEN: set[str] = set()
"""Refusals that `refuse` ignores: a step may have several reasons, and any of them may be reported."""


def refuse(kind: str) -> None:
    """Raise `Refused`, unless its kind is forgiven."""
    if kind not in FORGIVEN:
        raise Refused(kind)


def canonical(value: Any) -> Any:
    """Return the representative of all equal values: hashable, and equal by ``==`` inside a tuple."""
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple((name, canonical(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(canonical(part) for part in value)
    return value


def rank(value: Any) -> tuple[Any, ...]:
    """Return a canonical value's sort key in its type: null, then values, then NaN."""
    return (0,) if value is None else (2,) if value is NAN else (1, value)


def ranks(values: Iterable[Any]) -> tuple[tuple[Any, ...], ...]:
    """Return a composite sort key, compared left to right."""
    return tuple(rank(value) for value in values)


@dataclass(frozen=True)
class Input:
    """An upsert input: its columns, its spec, and its SQL conditions as Python functions of an event.

    For merging it has the columns' ``types`` by name (a dict for a struct), ``derive`` functions of a row, and a custom
    merger ``function`` of the old and the new row.
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
        """Columns of the collection's row, in input order."""
        spec = self.spec
        if spec.value is not None:
            return tuple(c for c in self.columns if c in spec.value or c in spec.key)
        hidden = {spec.time, spec.seq} | ({spec.delete.column} if isinstance(spec.delete, Tombstone) else set())
        return tuple(c for c in self.columns if c not in hidden)

    @property
    def counting(self) -> list[int]:
        """Indexes of the row columns that count as a change."""
        spec = self.spec
        if spec.track is not None:
            return [i for i, name in enumerate(self.row) if name in spec.track]
        return [i for i, name in enumerate(self.row) if name not in spec.noop_ignore]

    @property
    def keeps_order(self) -> bool:
        """Whether the winner's order stays with its key, even after a delete."""
        spec = self.spec
        return spec.late == "advance" if spec.time else bool(spec.order_by or spec.seq or spec.groups)

    @property
    def ties(self) -> bool:
        """Whether events of equal order tie; they do not if only arrival decides."""
        return bool(self.spec.order_by) or self.spec.time is not None

    def deletes(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event deletes its key; null means live."""
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
    """An event that is neither bad nor dropped as late.

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
    """A key's state: the winner's order, and its row, or None for a tombstone."""

    base: tuple[tuple[Any, ...], ...]
    order: Row
    seq: int | None
    row: Row | None


def is_stale(spec: Upsert, event: Event, held: Held) -> bool:
    """Return whether the event is older than its key's state at the start of the step."""
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
    """Return a row's sort key for ``tie="greatest"``: by counting columns; a row beats a delete."""
    return (0,) if row is None else (1, ranks(row[i] for i in input.counting))


def resolve(input: Input, held: Held | None, events: list[Event], over: bool = False) -> Held:
    """Set the verdict of every event of one key and time; return the key's new state.

    Refuses a forbidden tie.  ``over``: ignore the stored order (full contents).
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
    """Return whether no counting column changes."""
    if a is None or b is None:
        return a is b
    return [a[i] for i in input.counting] == [b[i] for i in input.counting]

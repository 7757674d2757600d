"""The twin's rules: what equals what, what comes before what, and which event of a key wins.

Invariant: `resolve` reads as the rulings in docs/semantics.md do, one event after the other in the order of arrival. A
winner must beat what the key holds and its rivals of the same time, and the verdict of each loser says which of the two
it lost to, and how. Nothing here knows of steps, times or outputs: that is ``model``.

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
    """The whole call is refused; ``kinds`` names the exception classes of ddflow that say why (any one will do)."""

    def __init__(self, *kinds: str) -> None:
        super().__init__(*kinds)
        self.kinds = set(kinds)


FORGIVEN: set[str] = set()
"""Refusals that `refuse` lets pass: a step may have several reasons, and which one is told is not ruled."""


def refuse(kind: str) -> None:
    """Raise `Refused`, unless that is forgiven."""
    if kind not in FORGIVEN:
        raise Refused(kind)


def canonical(value: Any) -> Any:
    """The value that stands for all that equal it: hashable, and equal by ``==`` inside a tuple."""
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple((name, canonical(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(canonical(part) for part in value)
    return value


def rank(value: Any) -> tuple[Any, ...]:
    """The place of a canonical value in the order of its type: null, then values, then NaN."""
    return (0,) if value is None else (2,) if value is NAN else (1, value)


def ranks(values: Iterable[Any]) -> tuple[tuple[Any, ...], ...]:
    """A composite order: compared left to right."""
    return tuple(rank(value) for value in values)


@dataclass(frozen=True)
class Input:
    """One upsert input: its input columns, its spec, and its SQL conditions as Python functions of an event.

    Of merging: the columns' ``types`` by name (a dict for a struct), what ``derive=`` computes from a row, and the
    merger of one's own as a ``function`` of the row held and the one given.
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
        """The columns of the collection's row, in input order."""
        spec = self.spec
        if spec.value is not None:
            return tuple(c for c in self.columns if c in spec.value or c in spec.key)
        hidden = {spec.time, spec.seq} | ({spec.delete.column} if isinstance(spec.delete, Tombstone) else set())
        return tuple(c for c in self.columns if c not in hidden)

    @property
    def counting(self) -> list[int]:
        """The places of the row columns that count in "did it change"."""
        spec = self.spec
        if spec.track is not None:
            return [i for i, name in enumerate(self.row) if name in spec.track]
        return [i for i, name in enumerate(self.row) if name not in spec.noop_ignore]

    @property
    def keeps_order(self) -> bool:
        """Whether the winner's order stays with its key, a deleted one's too."""
        spec = self.spec
        return spec.late == "advance" if spec.time else bool(spec.order_by or spec.seq or spec.groups)

    @property
    def ties(self) -> bool:
        """Whether events of equal order are a tie; where arrival alone decides, they are not."""
        return bool(self.spec.order_by) or self.spec.time is not None

    def deletes(self, event: Mapping[str, Any]) -> bool:
        """Whether an event says that its key is gone; null means live."""
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
    """One event that was neither bad nor dropped as late.

    ``numbers``: of its arrival, and by its seq.  ``given``: the columns that its batch had; ``groups``: its order for
    each group of columns, as given.
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
    """What a key holds: the winner's order, and its row, or None for a tombstone."""

    base: tuple[tuple[Any, ...], ...]
    order: Row
    seq: int | None
    row: Row | None


def is_stale(spec: Upsert, event: Event, held: Held) -> bool:
    """Whether the event is older than what its key held when the step began."""
    if event.base != held.base:
        return event.base < held.base
    return spec.tie == "last" and spec.seq is not None and rank(event.seq) < rank(held.seq)


def beats(input: Input, event: Event, champion: Event | Held) -> bool:
    """Whether an event that arrives after ``champion`` takes its place."""
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
    """The place of a row among rows of equal order under ``tie="greatest"``: by what counts; a value beats a delete."""
    return (0,) if row is None else (1, ranks(row[i] for i in input.counting))


def resolve(input: Input, held: Held | None, events: list[Event], over: bool = False) -> Held:
    """Give every event of one key and time its verdict; return what the key holds then.  Refuses a forbidden tie.

    ``over``: the order that is held decides nothing (full contents).
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
    """Whether nothing changes in the columns that count."""
    if a is None or b is None:
        return a is b
    return [a[i] for i in input.counting] == [b[i] for i in input.counting]

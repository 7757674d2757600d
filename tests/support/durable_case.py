"""Stories that durable state is tested with: calls, one an epoch, and what the twin says must be there after each.

Invariant: what is expected comes from the twin alone and is kept outside any store. Keys return, are deleted and come
again, orders tie and fall behind, text repeats, and there is a side output; one story is in epoch mode, one holds
events back. An engine that was reopened must also say again what an epoch gave, and go on as if nothing had been; so a
`Case` tells both what may be read and what every later call must return.

>>> case = CASES["epochs"]
>>> len(case.after) - 1 == len(case.calls), case.after[0].totals
(True, Counter())
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from doors import EngineDoor, Result, TwinDoor
from model import Collection
from tight import MEMORY, tighten

COLUMNS = {"k": "int64", "s": "string", "n": "int64", "o": "int64", "op": "string"}
SPEC: dict[str, Any] = {
    "key": ["k"],
    "order_by": ["o"],
    "tie": "last",
    "delete": {"tombstone": "op", "value": "D"},
    "stale": "side",
}
POSITIVE = ["filter", ["input", "a"], "n >= 0"]
OUTPUTS: dict[str, Any] = {
    "all": ["input", "a"],
    "by_s": ["count", POSITIVE, ["s"], "count"],
    "pairs": ["consolidate", ["project", POSITIVE, ["s", "n"]]],
}
TIGHT = {"share": 0, "rows": 2**40}
"""Everything goes to files at once; steps are not taken in ranges."""


class After(NamedTuple):
    """What is there after an epoch."""

    reads: dict[str, Collection]
    totals: Counter[str]
    pending: int
    frontier: int


class Case:
    """``calls``: of epoch 1, 2, ...  ``after``: by epoch, from 0.  ``results``: by epoch; that of 0 is empty."""

    def __init__(self, scenario: Mapping[str, Any], calls: list[list[Any]]) -> None:
        self.scenario, self.calls = scenario, calls
        twin = TwinDoor(scenario)
        self.names = [*scenario["inputs"], *scenario["outputs"]]
        self.after, self.results = [self._after(twin)], [Result({}, Counter(), {}, 0)]
        for verb, *arguments in calls:
            given = {
                "step": lambda a: twin.step(a[1], a[0]),
                "push": lambda a: twin.push(a[0]),
                "advance": lambda a: twin.advance_to(a[0]),
            }
            self.results.append(given[verb](arguments))
            self.after.append(self._after(twin))

    def _after(self, twin: TwinDoor) -> After:
        reads = {name: twin.read(name) for name in self.names}
        return After(reads, twin.totals(), len(twin.twin.state.pending), twin.twin.state.frontier)

    def open(self, state: Any, medium: Mapping[str, int] | None = None, **options: Any) -> EngineDoor:
        """An engine of this story on a state; its merges are small, and with ``medium`` it holds nothing in memory."""
        return opened(self.scenario, state, medium, **options)

    def play(self, door: EngineDoor, epoch: int) -> Any:
        """The call of an epoch, given by number; what the engine returned, or raised."""
        return perform(door, self.calls[epoch - 1], epoch)

    def go(self, door: EngineDoor, epoch: int) -> None:
        """The call of an epoch, which must return what the twin says."""
        self.agrees(door, self.play(door, epoch), epoch)

    def agrees(self, door: EngineDoor, step: Any, epoch: int) -> None:
        """Assert that a call returned what the twin says of that epoch."""
        found, expected = door._call(lambda: step), self.results[epoch]
        assert found.updates == expected.updates, f"epoch {epoch}: {found.updates}, not {expected.updates}"
        assert found.verdicts == expected.verdicts, f"epoch {epoch}: {found.verdicts}, not {expected.verdicts}"

    def holds(self, door: Any, epoch: int) -> None:
        """Assert that an engine's state is that after an epoch."""
        found, expected = held(door, self.names), self.after[epoch]
        assert found == expected, f"after epoch {epoch}: {found}, not {expected}"

    def recovered(self, state: Any, least: int, most: int, upto: int | None = None, **options: Any) -> int:
        """Open a state and assert that it is that after an epoch within bounds, tells it again, and goes on rightly.

        ``upto``: the last epoch that it goes on to; all by default.  The epoch it was found at.
        """
        door = self.open(state, **options)
        try:
            found = door.engine.epoch
            assert least <= found <= most, f"it is at epoch {found}, not at one from {least} to {most}"
            self.holds(door, found)
            door.engine._check_invariants()
            if found:
                self.go(door, found)
                self.holds(door, found)
            for epoch in range(found + 1, len(self.calls) + 1 if upto is None else min(upto, len(self.calls)) + 1):
                self.go(door, epoch)
                self.holds(door, epoch)
                door.engine._check_invariants()
        finally:
            door.close()
        return found


def opened(
    scenario: Mapping[str, Any], state: Any, medium: Mapping[str, int] | None = None, **options: Any
) -> EngineDoor:
    """A scenario's engine on a state, with small merges.  ``medium``: see `tight.tighten`; None: without a budget."""
    if medium is not None:
        options |= {"memory": MEMORY}
    door = EngineDoor(scenario, state=state, **{"verdicts": "counts", "retain": 0} | options)
    if medium is not None:
        tighten(door.engine, **medium)
    for arranged in door.engine.dataflow.graph.arrangements.values():
        arranged.spine.fan = arranged.on_disk.fan = 2
    return door


def perform(door: EngineDoor, call: list[Any], epoch: int | None = None) -> Any:
    """A call of a trace, with its number, as the engine returns it."""
    verb, *arguments = call
    if verb == "advance":
        return door.engine.advance_to(arguments[0], epoch=epoch)
    tables = door._tables(arguments[-1])
    act = partial(door.engine.step, time=arguments[0]) if verb == "step" else door.engine.push
    return act(tables, epoch=epoch)


def held(door: EngineDoor, names: list[str]) -> After:
    """What an engine holds."""
    engine = door.engine
    return After(
        {name: door.read(name) for name in names}, door.totals(), engine.dataflow.pending_count, engine.frontier
    )


def _epochs(steps: int, seed: int = 5, rows: int = 8, keys: int = 12, outputs: Any = OUTPUTS) -> Case:
    chance = random.Random(seed)
    calls = [["step", time, {"a": [_event(chance, time, keys) for _ in range(rows)]}] for time in range(1, steps + 1)]
    return Case({"inputs": {"a": {"columns": COLUMNS, "spec": SPEC}}, "outputs": outputs}, calls)


def _held_back(pushes: int, seed: int = 6, rows: int = 8, keys: int = 12, outputs: Any = OUTPUTS) -> Case:
    chance = random.Random(seed)
    columns, spec = COLUMNS | {"t": "int64"}, SPEC | {"time": "t", "late": "advance", "stale": "mark"}
    calls: list[list[Any]] = []
    for at in range(1, pushes + 1):
        events = [[*_event(chance, at, keys), max(3 * at + chance.randrange(-4, 7), 0)] for _ in range(rows)]
        calls.append(["push", {"a": events}])
        if at % 2 == 0:
            calls.append(["advance", 3 * at])
    calls.append(["advance", 3 * pushes + 9])
    return Case({"inputs": {"a": {"columns": columns, "spec": spec}}, "outputs": outputs}, calls)


def _event(chance: random.Random, time: int, keys: int) -> list[Any]:
    text = chance.choice(["a", "b", "a text that is longer than the others", None])
    order = 4 * time + chance.randrange(-6, 5)
    return [
        chance.randrange(keys),
        text,
        chance.choice([-1, 0, 1, None]),
        order,
        "D" if chance.random() < 0.25 else "U",
    ]


CASES = {"epochs": _epochs(6), "held back": _held_back(4)}
"""Both modes; six epochs, and seven."""
_FEW = {"by_s": OUTPUTS["by_s"]}
SMALL = {
    "epochs": _epochs(3, seed=18, rows=5, keys=6, outputs=_FEW),
    "held back": _held_back(2, seed=0, rows=5, keys=6, outputs=_FEW),
}
"""A few events only, for what is tried at every byte or call."""

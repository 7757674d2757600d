"""Define the cases for tests of durable state.

For each epoch, a case has one call and the twin's state after this call.

Expected states come only from the twin and are kept outside any store. In the cases, keys are deleted and inserted
again, orders are equal or late, texts repeat, and there are several outputs. One case uses epoch mode, and another case
uses hold-back mode. A reopened engine must repeat the result of an epoch and continue as before. So a `Case` has the
readable state and the result of every call.

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
"""Arguments of `tighten`. With these, all data goes to files at once, but steps are not split into ranges."""


class After(NamedTuple):
    """The state after an epoch."""

    reads: dict[str, Collection]
    totals: Counter[str]
    pending: int
    frontier: int


class Case:
    """A test case.

    ``calls``: the calls of epochs 1, 2 and so on.  ``after``: the state after each epoch, from 0 on.  ``results``: the
    result of each epoch, empty for epoch 0.
    """

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
        """Open an engine on a state, with small merges. With ``medium``, the engine keeps nothing in memory."""
        return opened(self.scenario, state, medium, **options)

    def play(self, door: EngineDoor, epoch: int) -> Any:
        """Make the call of the epoch with this number, and return the engine's result."""
        return perform(door, self.calls[epoch - 1], epoch)

    def go(self, door: EngineDoor, epoch: int) -> None:
        """Make the call of an epoch, and compare the result with that of the twin."""
        self.agrees(door, self.play(door, epoch), epoch)

    def agrees(self, door: EngineDoor, step: Any, epoch: int) -> None:
        """Assert that a call returned the twin's result of that epoch."""
        found, expected = door._call(lambda: step), self.results[epoch]
        assert found.updates == expected.updates, f"epoch {epoch}: {found.updates}, not {expected.updates}"
        assert found.verdicts == expected.verdicts, f"epoch {epoch}: {found.verdicts}, not {expected.verdicts}"

    def holds(self, door: Any, epoch: int) -> None:
        """Assert that an engine has the state after an epoch."""
        found, expected = held(door, self.names), self.after[epoch]
        assert found == expected, f"after epoch {epoch}: {found}, not {expected}"

    def recovered(self, state: Any, least: int, most: int, upto: int | None = None, **options: Any) -> int:
        """Open a state, check it, continue its epochs, and return the epoch at which it was opened.

        The epoch must be between ``least`` and ``most``, and the engine must repeat the result of this epoch.

        ``upto``: the last epoch to continue to; all by default.
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
    """Open the engine of a scenario with small merges.

    ``medium`` has the arguments of `tight.tighten`; None means no budget.
    """
    if medium is not None:
        options |= {"memory": MEMORY}
    door = EngineDoor(scenario, state=state, **{"verdicts": "counts", "retain": 0} | options)
    if medium is not None:
        tighten(door.engine, **medium)
    for arranged in door.engine.dataflow.graph.arrangements.values():
        arranged.spine.fan = arranged.on_disk.fan = 2
    return door


def perform(door: EngineDoor, call: list[Any], epoch: int | None = None) -> Any:
    """Take a call from a trace, make it on an engine with its epoch number, and return the result."""
    verb, *arguments = call
    if verb == "advance":
        return door.engine.advance_to(arguments[0], epoch=epoch)
    tables = door._tables(arguments[-1])
    act = partial(door.engine.step, time=arguments[0]) if verb == "step" else door.engine.push
    return act(tables, epoch=epoch)


def held(door: EngineDoor, names: list[str]) -> After:
    """Return the readable state of an engine as an `After`."""
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
"""Cases in both modes. The cases have six and seven epochs."""
_FEW = {"by_s": OUTPUTS["by_s"]}
SMALL = {
    "epochs": _epochs(3, seed=18, rows=5, keys=6, outputs=_FEW),
    "held back": _held_back(2, seed=0, rows=5, keys=6, outputs=_FEW),
}
"""Cases with few events, for tests that repeat a case for every byte or call."""

"""The engine beside the twin: every call goes to both, and they must agree on everything that can be seen.

Invariant: after each call updates, verdicts (counts and rows), pending, totals and frontier are equal, and a call that
the twin refuses is refused by the engine for a reason the twin gives and changes nothing.  A disagreement raises with
the whole trace as JSON, ready to be put under ``tests/found``.  Why that is not trivial: a refused call must be shown
to leave reads alone, which takes reading everything before the next call.

>>> scenario = {"sources": {"a": {"columns": {"k": "int64"}, "spec": {"key": ["k"]}}},
...             "outputs": {"out": ["source", "a"]}}
>>> pair = Pair(scenario)
>>> pair.step({"a": [[1], [1]]}, 1).verdicts["applied"]
1
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from doors import FOREVER, EngineDoor, Result, Rows, Shape, TwinDoor, as_table
from model import CLOSED, NEVER
from rules import Refused

from ddflow.errors import NotReadable


class Pair:
    """Both doors of one scenario.  Methods return the twin's result, or None when the call was refused by both."""

    def __init__(self, scenario: Mapping[str, Any], shape: Shape = as_table, **options: Any) -> None:
        self.scenario = scenario
        self.twin, self.engine = TwinDoor(scenario), EngineDoor(scenario, shape, **options)
        self.calls: list[list[Any]] = []
        self.lists = options.get("verdicts", "rows") == "rows"
        self.retain, self.last = options.get("retain", FOREVER), NEVER
        self.names = [*scenario["sources"], *scenario["outputs"]]
        for name in self.names:
            self._same(f"columns of {name}", self.twin.columns_of(name), self.engine.columns_of(name))

    def step(self, inputs: Mapping[str, Rows], time: int) -> Result | None:
        """Epoch mode."""
        self.calls.append(["step", time, inputs])
        return self._both(lambda door: door.step(inputs, time))

    def push(self, inputs: Mapping[str, Rows]) -> Result | None:
        """Hold-back mode."""
        self.calls.append(["push", inputs])
        return self._both(lambda door: door.push(inputs))

    def advance_to(self, frontier: int) -> Result | None:
        """Hold-back mode."""
        self.calls.append(["advance", frontier])
        return self._both(lambda door: door.advance_to(frontier))

    def play(self, call: list[Any]) -> Result | None:
        """One call of a trace: ``["step", time, inputs]``, ``["push", inputs]`` or ``["advance", frontier]``."""
        verb, *arguments = call
        if verb == "step":
            return self.step(arguments[1], arguments[0])
        return self.push(arguments[0]) if verb == "push" else self.advance_to(arguments[0])

    def check_reads(self, *times: int) -> None:
        """Everything read now, and as of some times; a time whose history was not retained is refused."""
        since = self.last - self.retain
        for name in self.names:
            self._same(f"read({name!r})", self.twin.read(name), self.engine.read(name))
            for time in times:
                expected = self.twin.read(name, time) if time >= since else "NotReadable"
                self._same(f"read({name!r}, as_of={time})", expected, self._read(name, time))

    def _read(self, name: str, as_of: int) -> Any:
        try:
            return self.engine.read(name, as_of)
        except NotReadable as error:
            return type(error).__name__

    def close(self) -> None:
        """Read everything at every time that was closed, then close the engine."""
        history = [time for time, _ in self.twin.twin.history]
        self.check_reads(*(time for time in {*history, *(t - 1 for t in history[1:])}))
        self.engine.engine.close()

    def _both(self, act: Callable[[Any], Result]) -> Result | None:
        try:
            expected = act(self.twin)
        except Refused as refused:
            self._refused(refused, act)
            return None
        try:
            found = act(self.engine)
        except Refused as refused:
            raise AssertionError(
                f"the engine refused what the twin does: {refused.__cause__!r}\n{self.trace()}"
            ) from refused
        self._same("updates", expected.updates, found.updates)
        self._same("verdicts", expected.verdicts, found.verdicts)
        listed = {name: [] for name in expected.rows} | found.rows if self.lists else expected.rows
        self._same("verdict rows", expected.rows, listed)
        assert self.lists or not found.rows, "verdict rows that nobody asked for"
        self._same("pending", expected.pending, found.pending)
        self._close_times()
        self._unmoved()
        return expected

    def _refused(self, refused: Refused, act: Callable[[Any], Result]) -> None:
        try:
            act(self.engine)
        except Refused as found:
            if not found.kinds & refused.kinds:
                self._same("refusal", refused.kinds, found.kinds)
        else:
            raise AssertionError(f"the engine does what the twin refuses ({refused})\n{self.trace()}")
        self._unmoved()
        self.check_reads()

    def _close_times(self) -> None:
        """Note the last closed time: before the frontier, or the last with events once the input is closed."""
        frontier, history = self.twin.twin.state.frontier, self.twin.twin.history
        if frontier < CLOSED:
            self.last = max(frontier - 1, NEVER)
        elif history:
            self.last = max(self.last, history[-1][0])

    def _unmoved(self) -> None:
        self.engine.engine._check()
        self._same("totals", self.twin.totals(), self.engine.totals())
        self._same("frontier", self.twin.twin.state.frontier, self.engine.engine.frontier)

    def _same(self, what: str, expected: Any, found: Any) -> None:
        if expected != found:
            raise AssertionError(f"{what} differ\ntwin:   {expected}\nengine: {found}\n{self.trace()}")

    def trace(self) -> str:
        """The scenario and the calls so far, as a file under ``tests/found`` holds them."""
        return json.dumps({"scenario": self.scenario, "calls": self.calls}, ensure_ascii=False)

"""Run every call on the engine and the twin, and require the same visible results.

After each call, updates, verdicts (counts and rows), pending events, totals and frontier must be equal. If the twin
refuses a call, the engine must refuse the call too, for one of the twin's reasons, and must change nothing. If the
results differ, an error shows the complete trace as JSON, for `tests/found`. After a refused call, the test reads all
inputs and outputs. Each step moves `since` to the retained time or to the oldest reader, so every reader reads after
each call.

>>> scenario = {"inputs": {"a": {"columns": {"k": "int64"}, "spec": {"key": ["k"]}}},
...             "outputs": {"out": ["input", "a"]}}
>>> pair = Pair(scenario)
>>> pair.step({"a": [[1], [1]]}, 1).verdicts["applied"]
1
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from typing import Any

import tight
from doors import FOREVER, EngineDoor, EngineReader, Result, Rows, Shape, TwinDoor, TwinReader, as_table
from model import CLOSED, NEVER, Collection
from rules import FORGIVEN, Refused

from ddflow.errors import DdflowError, PlanChanged


class Pair:
    """A scenario that the twin and the engine have opened. Methods return the twin's result, or None if both refuse.

    ``options``: the options of the engine, and ``medium``, as in `EngineDoor`.
    """

    def __init__(self, scenario: Mapping[str, Any], shape: Shape = as_table, **options: Any) -> None:
        self.scenario, self.first, self.options = scenario, scenario, options
        self.twin, self.engine = TwinDoor(scenario), EngineDoor(scenario, shape, **options)
        self.calls: list[list[Any]] = []
        self.lists = options.get("verdicts", "rows") == "rows"
        self.retain, self.last = options.get("retain", FOREVER), NEVER
        self.readers: dict[int, tuple[TwinReader, EngineReader]] = {}
        self.opened, self.since = 0, NEVER
        self.names = [*scenario["inputs"], *scenario["outputs"]]
        for name in self.names:
            self._same(f"columns of {name}", self.twin.columns_of(name), self.engine.columns_of(name))

    def step(self, inputs: Mapping[str, Rows], time: int) -> Result | None:
        """Step in epoch mode."""
        self.calls.append(["step", time, inputs])
        return self._both(lambda door: door.step(inputs, time))

    def push(self, inputs: Mapping[str, Rows]) -> Result | None:
        """Push in hold-back mode."""
        self.calls.append(["push", inputs])
        before = self.twin.twin.state.frontier
        return self._both(lambda door: door.push(inputs), lambda: self.twin.twin.state.frontier > before)

    def advance_to(self, frontier: int) -> Result | None:
        """Advance in hold-back mode."""
        self.calls.append(["advance", frontier])
        return self._both(lambda door: door.advance_to(frontier))

    def contents(self, act: dict[str, Any]) -> Result | None:
        """Replace or restate full contents.

        ``act`` has the arguments of the twin's `replace`. Its item ``once`` is False for a restate.
        """
        self.calls.append(["contents", act])
        return self._both(lambda door: door.replace(**act))

    def evolve(self, scenario: Mapping[str, Any]) -> bool:
        """Add or widen columns as in another scenario. Return whether the engine accepts the new columns.

        The engine may refuse the new columns with `PlanChanged` if the meaning of the plan would change.
        """
        self.calls.append(["evolve", scenario])
        try:
            self.engine.evolve(scenario)
        except PlanChanged:
            self._unmoved()
            self.check_reads()
            return False
        self.twin.evolve(scenario)
        self.scenario = self.twin.scenario
        for name in self.names:
            self._same(f"columns of {name}", self.twin.columns_of(name), self.engine.columns_of(name))
        self._unmoved()
        self.check_reads()
        return True

    def changes(self, name: str, t1: int, t2: int) -> Collection | None:
        """Return the net changes from one time to another."""
        self.calls.append(["changes", name, t1, t2])
        refusals = self._refusals(t1, t2) | ({"TimeWentBack"} if t2 < t1 else set())
        expected = self.twin.changes(name, t1, t2) if not refusals else None
        return self._answered(
            f"changes({name!r}, {t1}, {t2})", expected, refusals, lambda: self.engine.changes(name, t1, t2)
        )

    def open(self, name: str, at: int | None = None) -> int | None:
        """Open a reader, by default at the last closed time.

        Return the number of the reader, or None if the twin and the engine refuse.
        """
        self.calls.append(["open", name, at])
        time, opened = self.last if at is None else at, list[EngineReader]()
        self._answered(
            f"reader({name!r}, {at})", None, self._refusals(time), lambda: opened.append(self.engine.reader(name, at))
        )
        if opened:
            self.opened += 1
            self.readers[self.opened] = self.twin.reader(name, time), opened[0]
        self._unmoved()
        return self.opened if opened else None

    def follow(self, number: int, to: int | None = None) -> Collection | None:
        """Return the changes since a reader's time, and then move the reader, by default to the last closed time."""
        self.calls.append(["follow", number, to])
        return self._moved(number, to, lambda reader, time: reader.changes_to(time))

    def move(self, number: int, to: int | None = None) -> None:
        """Move a reader to another time, by default the last closed time."""
        self.calls.append(["move", number, to])
        self._moved(number, to, lambda reader, time: reader.advance_to(time))

    def release_hold(self, number: int, forget: bool = False) -> None:
        """Close a reader, so that it can no longer read. Or drop only the reference to the reader."""
        self.calls.append(["let go", number, forget])
        _, reader = self.readers.pop(number)
        if not forget:
            reader.reader.close()
            reader.reader.close()
            for act in (reader.read, reader.changes_to, reader.advance_to):
                self._answered("a closed reader", None, {"NotReadable"}, act)
        del reader
        gc.collect()
        self._unmoved()

    def spill(self, rest: int = 0) -> None:
        """Spill the state and pending events, until ``rest`` thousandths of them are left in memory.

        1000 only starts a flush.
        """
        self.calls.append(["spill", rest])
        tight.spill(self.engine.engine, rest)
        self._unmoved()

    def merge(self, effort: int | None, bite: int = 2) -> None:
        """Advance all merges by ``effort`` versions, with ``bite`` versions at a time. None completes the merges."""
        self.calls.append(["merge", effort, bite])
        tight.merge(self.engine.engine, effort, bite)
        self._unmoved()

    def hindered(self, call: list[Any]) -> Any:
        """Step, push or advance on a full disk. If the engine refuses because of the disk, repeat the call."""
        self.calls.append(["hindered", call])
        verb, *arguments = call
        acts: dict[str, Callable[[Any], Result]] = {
            "step": lambda door: door.step(arguments[1], arguments[0]),
            "push": lambda door: door.push(arguments[0]),
            "advance": lambda door: door.advance_to(arguments[0]),
        }
        act, refused, before = acts[verb], set[str](), self.twin.twin.state.frontier
        closes = lambda: verb != "push" or self.twin.twin.state.frontier > before  # noqa: E731
        try:
            with tight.full():
                found = act(self.engine)
        except Refused as why:
            refused = why.kinds
        if "SpillFull" in refused:
            self._unmoved()
            self.check_reads()
        return self._both(act if refused else lambda door: act(door) if door is self.twin else found, closes)

    def play(self, call: list[Any]) -> Any:
        """Make one call of a trace. A call is the name of a method with arguments.

        "advance" means `advance_to`, and "let go" means `release_hold`. The arguments of a step are in this order:
        ``["step", time, inputs]``.
        """
        verb, *arguments = call
        if verb == "step":
            return self.step(arguments[1], arguments[0])
        acts: dict[str, Callable[..., Any]] = {
            "push": self.push,
            "advance": self.advance_to,
            "contents": self.contents,
            "evolve": self.evolve,
            "changes": self.changes,
            "open": self.open,
            "follow": self.follow,
            "move": self.move,
            "let go": self.release_hold,
            "spill": self.spill,
            "merge": self.merge,
            "hindered": self.hindered,
        }
        return acts[verb](*arguments)

    def check_reads(self, *times: int) -> None:
        """Read everything as of now and as of some times. The engine must refuse a time before the retained history."""
        for name in self.names:
            self._same(f"read({name!r})", self.twin.read(name), self.engine.read(name))
            for time in times:
                self._answered(
                    f"read({name!r}, as_of={time})",
                    self.twin.read(name, time),
                    self._refusals(time),
                    lambda name=name, time=time: self.engine.read(name, time),
                )

    def _refusals(self, *times: int) -> set[str]:
        """Return the errors with which the engine must refuse to read at these times."""
        frontier = max(self.twin.twin.state.frontier, NEVER + 1)
        return {"NotReadable" for time in times if not self.since <= time < frontier}

    def _answered(self, what: str, expected: Any, refusals: set[str], act: Callable[[], Any]) -> Any:
        """Return the engine's answer, compared with the twin's, or None if the engine rightly refuses."""
        try:
            found = act()
        except DdflowError as error:
            if type(error).__name__ not in refusals:
                self._same(what, refusals or expected, f"{type(error).__name__}: {error}")
            return None
        if refusals:
            self._same(what, refusals, found)
        self._same(what, expected, found)
        return found

    def _moved(self, number: int, to: int | None, act: Callable[[Any, int | None], Any]) -> Any:
        twin, engine = self.readers[number]
        time = self.last if to is None else to
        refusals = {"TimeWentBack"} if time < twin.time else self._refusals(time)
        expected = act(twin, time) if not refusals else None
        out = self._answered(f"reader {number} of {twin.name!r} to {to}", expected, refusals, lambda: act(engine, to))
        self._unmoved()
        return out

    def close(self) -> None:
        """Read everything at every closed time, then close the engine."""
        history = [time for time, _ in self.twin.twin.history]
        self.check_reads(*(time for time in {*history, *(t - 1 for t in history[1:])}))
        for number in list(self.readers):
            self.follow(number)
        self.engine.close()
        for number, (_, reader) in self.readers.items():
            self._answered(f"reader {number} of a closed engine", None, {"EngineClosed"}, reader.read)
            reader.reader.close()

    def _both(self, act: Callable[[Any], Result], closes: Callable[[], bool] = lambda: True) -> Result | None:
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
        if closes():
            self._close_times()
        self._unmoved()
        return expected

    def _refused(self, refused: Refused, act: Callable[[Any], Result]) -> None:
        try:
            act(self.engine)
        except Refused as found:
            if not found.kinds & refused.kinds:
                self._also(found, refused, act)
        else:
            raise AssertionError(f"the engine does what the twin refuses ({refused})\n{self.trace()}")
        self._unmoved()
        self.check_reads()

    def _also(self, found: Refused, refused: Refused, act: Callable[[Any], Result]) -> None:
        """Assert that the twin has the engine's reason too. The twin is called again with its other reasons ignored."""
        FORGIVEN.update(refused.kinds)
        try:
            act(self.twin)
        except Refused as other:
            if not found.kinds & other.kinds:
                self._same("refusal", other.kinds | refused.kinds, found.kinds)
        else:
            self._same("refusal", refused.kinds, found.kinds)
        finally:
            FORGIVEN.clear()

    def _close_times(self) -> None:
        """Update the last closed time.

        The last closed time is just before the frontier. After the input is closed, the last closed time is the last
        time with events.

        Then move `since` to the retained time or to the time of the oldest reader.
        """
        frontier, history = self.twin.twin.state.frontier, self.twin.twin.history
        if frontier < CLOSED:
            self.last = max(frontier - 1, NEVER)
        elif history:
            self.last = max(self.last, history[-1][0])
        held = [reader.time for reader, _ in self.readers.values()]
        self.since = max(self.since, min([max(self.last - self.retain, NEVER), *held]))

    def _unmoved(self) -> None:
        self.engine.engine._check_invariants()
        self._same("totals", self.twin.totals(), self.engine.totals())
        self._same("frontier", self.twin.twin.state.frontier, self.engine.engine.frontier)
        self._same("since", self.since, self.engine.engine.since)
        for number, (twin, engine) in self.readers.items():
            self._same(f"time of reader {number}", twin.time, engine.time)
            self._same(f"reader {number} of {twin.name!r}", twin.read(), engine.read())

    def _same(self, what: str, expected: Any, found: Any) -> None:
        if expected != found:
            raise AssertionError(f"{what} differ\ntwin:   {expected}\nengine: {found}\n{self.trace()}")

    def trace(self) -> str:
        """Return the scenario, the options and the calls as JSON, in the format of `tests/found`."""
        trace = {"scenario": self.first, "options": self.options, "calls": self.calls}
        return json.dumps(trace, ensure_ascii=False)

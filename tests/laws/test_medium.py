"""Test the laws of state outside memory: its place, its merges and its compaction change no answer.

Each property runs drawn traces under `tight.tiny`, so that a few events are flushed, merged on disk and processed in
ranges. Each property ends with a count of these paths, because a law about spilling would also hold without any spill.
docs/semantics.md states the laws under "Laws".
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import tight
from chance import covering, mid_test
from doors import FOREVER, EngineDoor
from hypothesis import given, strategies as st
from model import CLOSED, NEVER, Collection as Rows
from pair import Pair
from strategies import events, ignored, scenarios, shapes, splits
from test_laws import DECIDED, calls, merged, numbered, quietly, same_collections
from tight import WAYS, tiny

from ddflow.errors import NotReadable

pytestmark = pytest.mark.sampled

ALL, NONE = {"share": 0, "rows": 3}, {"share": 2**40, "rows": 2**40}
"""Everything leaves memory at once; nothing does, unless it is told to."""
ON_DISK = {"a piece of a flush", "a flush half way", "a piece of a merge on disk", "a key found on disk"}
Trace = tuple[dict[str, Any], list[list[Any]]]


@st.composite
def crowds(draw: st.DrawFn) -> Trace:
    """A trace of more keys than `strategies` has values: some 60, a few dozen events a step, a fifth deletes."""
    chance, holds_back = random.Random(draw(st.integers(0, 2**32))), draw(st.booleans())
    kinds = st.sampled_from(["int64", "string", "float64"])
    columns = {"k": draw(kinds), "s": "string", "n": "int64", "l": "list<int64>", "op": "string", "o": draw(kinds)}
    spec: dict[str, Any] = {
        "key": ["k"],
        "order_by": draw(st.sampled_from([["o"], []])),
        "delete": {"tombstone": "op", "value": "D"},
        "stale": draw(st.sampled_from(["drop", "mark", "side"])),
    }
    spec |= draw(st.sampled_from([{}, {"noop_ignore": ["s"]}, {"track": ["o"]}]))
    if spec["order_by"] or holds_back:
        spec["tie"] = draw(st.sampled_from(["last", "first"]))
    if holds_back:
        columns["t"], spec["time"], spec["late"] = "int64", "t", "advance"
    a, positive = ["input", "a"], ["filter", ["input", "a"], "n >= 0"]
    outputs = {
        "by_s": ["count", positive, ["s"], "count"],
        "most": ["concat", ["project", a, ["k", "n"]], ["negate", ["project", positive, ["k", "n"]]]],
        "rows": ["consolidate", ["project", a, ["s", "n"]]],
    }
    out: list[list[Any]] = []
    for step in range(draw(st.integers(2, 5))):
        rows = [member(chance, columns, step) for _ in range(chance.randrange(40))]
        out += [["push", {"a": rows}], ["advance", 4 * step]] if holds_back else [["step", step, {"a": rows}]]
    return {"inputs": {"a": {"columns": columns, "spec": spec}}, "outputs": outputs}, out


def member(chance: random.Random, columns: Mapping[str, str], step: int) -> list[Any]:
    """One event of a crowd."""
    key, order = chance.randrange(60), chance.randrange(20 * step + 20)
    values = {"int64": [key, order], "string": [f"the key of number {key}", f"{order:04}"], "float64": [key / 7, order]}
    row = {
        "k": values[columns["k"]][0],
        "o": values[columns["o"]][1],
        "s": chance.choice(["a", "b", "a text that is longer", None]),
        "n": chance.choice([-1, 0, 1, None]),
        "l": chance.choice([[], [1, None], None]),
        "op": "D" if chance.random() < 0.2 else "U",
        "t": 4 * step + chance.randrange(-3, 8),
    }
    return [row[name] for name in columns]


@st.composite
def drawn(draw: st.DrawFn) -> Trace:
    """A scenario of any kind, and its calls."""
    scenario = draw(scenarios())
    return scenario, draw(calls(scenario))


def holds(law: Callable[[st.DataObject, Any], None], ways: Collection[str], examples: int) -> None:
    """Assert that a law holds of drawn traces, and of half as many crowds; and that in doing so the ways were gone."""
    went: Counter[str] = Counter()
    for traces, number in ((drawn(), examples), (crowds(), examples // 2)):

        @covering(number)
        @given(st.data(), traces)
        def each(data: st.DataObject, trace: Trace) -> None:
            with tiny() as seen:
                law(data, trace)
            went.update(seen)

        each()
    assert set(ways) - set(went) == set()


RETAIN, MEDIA = st.sampled_from([0, 2, FOREVER]), st.sampled_from([ALL, NONE])
EFFORTS = st.sampled_from([0, 1, 3, 6, None])


def readable(door: EngineDoor) -> list[int | None]:
    """Now, and the times in [since, upper): all of them that lie near the events', and the edges."""
    since, upper = door.engine.since, max(door.engine.frontier, NEVER + 1)
    near = {*range(-6, 26), since, upper - 1, CLOSED - 1}
    return [None, *sorted(time for time in near if since <= time < upper)]


def moments(data: st.DataObject, times: Sequence[int | None]) -> list[int | None]:
    """Now, the first and the last of some times, and a few between: all of them are read where a trace ends."""
    return [None, *times[1:2], *times[-1:], *data.draw(st.lists(st.sampled_from(times), max_size=4))]


def everything(door: EngineDoor, times: Sequence[int | None] = ()) -> dict[tuple[str, int | None], Rows]:
    """All that can be read: each input and output at each time."""
    names = [*door.flow.inputs, *door.flow.outputs]
    return {(name, time): door.read(name, time) for name in names for time in times or readable(door)}


def figures(door: EngineDoor) -> Any:
    """What stats tell that is no matter of where things are."""
    stats = door.engine.stats()
    state = {name: (each["keys"], each["tombstones"]) for name, each in stats["arrangements"].items()}
    return state, stats["pending"], stats["frontier"], stats["since"], dict(stats["verdicts"])


def stir(data: st.DataObject, door: EngineDoor) -> None:
    """Spill some of what an engine holds, and go on with some of its merges."""
    for rest in data.draw(st.lists(st.sampled_from([0, 1000, 1000, 1000]), max_size=2)):
        tight.spill(door.engine, rest)
        tight.merge(door.engine, data.draw(EFFORTS), data.draw(st.sampled_from([1, 2, 9])))
        door.engine._check_invariants()


@pytest.mark.drawn(2, of="media")
def test_medium_spilled_all_or_none_or_at_random_the_answers_are_those_of_memory() -> None:
    def law(data: st.DataObject, trace: Trace) -> None:
        (scenario, played), shape = trace, data.draw(shapes())
        options = {"retain": data.draw(RETAIN), "verdicts": data.draw(st.sampled_from(["rows", "counts"]))}
        memory = EngineDoor(scenario, shape, **options)
        doors = [
            EngineDoor(scenario, shape, medium, threads=threads, **options)
            for medium, threads in ((ALL, 2), (NONE, 1), (NONE, 2))
        ]
        for call in played:
            expected = quietly(memory, call)
            for door in doors:
                assert quietly(door, call) == expected
                if door is doors[2]:
                    stir(data, door)
                door.engine._check_invariants()
                assert figures(door) == figures(memory)
        assert doors[1].engine.stats()["bytes_mapped"] == 0
        reads = everything(memory)
        for door in doors:
            assert everything(door) == reads
            door.close()

    holds(law, WAYS, 20)


@mid_test
@pytest.mark.drawn(2, of="media")
def test_merge_any_effort_at_any_moment_leaves_all_reads_the_same() -> None:
    def law(data: st.DataObject, trace: Trace) -> None:
        scenario, played = trace
        door = EngineDoor(scenario, medium=NONE, retain=data.draw(RETAIN))
        for call in played:
            quietly(door, call)
            before = everything(door), figures(door)
            for _ in range(data.draw(st.integers(1, 2))):
                stir(data, door)
                assert (everything(door), figures(door)) == before
        door.close()

    holds(law, {way for way in WAYS if "flush" in way or "merge" in way}, 16)


@pytest.mark.drawn(2, of="media")
def test_compaction_raising_since_changes_no_read_at_or_after_it() -> None:
    def law(data: st.DataObject, trace: Trace) -> None:
        scenario, played = trace
        whole = EngineDoor(scenario)
        door = EngineDoor(scenario, medium=data.draw(MEDIA), retain=data.draw(st.sampled_from([0, 0, 1, 4])))
        readers, since = [], NEVER
        for call in played:
            assert quietly(door, call) == quietly(whole, call)
            stir(data, door)
            times = [time for time in readable(door) if time in readable(whole)]
            read = times if call is played[-1] else moments(data, times)
            assert everything(door, read) == everything(whole, read)
            assert door.engine.since >= since
            since = door.engine.since
            if since > NEVER:
                with pytest.raises(NotReadable):
                    door.read("a", since - 1)
            act = data.draw(st.sampled_from(["open", "advance", "close", "wait"]))
            if act == "open":
                readers.append(door.engine.reader("a", data.draw(st.sampled_from(times))))
            elif readers and act != "wait":
                reader = readers[0] if act == "advance" else readers.pop(0)
                reader.advance_to() if act == "advance" else reader.close()
        door.close()

    holds(law, ON_DISK, 14)


@pytest.mark.drawn(2, of="media")
def test_agreement_every_read_in_since_to_upper_equals_the_twin() -> None:
    def law(data: st.DataObject, trace: Trace) -> None:
        (scenario, played), retain = trace, data.draw(st.sampled_from([0, 1, 4, FOREVER]))
        pair = Pair(scenario, data.draw(shapes()), medium=data.draw(MEDIA), retain=retain)
        for call in played:
            pair.play(call)
            pair.spill(data.draw(st.sampled_from([0, 1000, 1000])))
            pair.merge(data.draw(EFFORTS))
            times = readable(pair.engine)
            read = times if call is played[-1] else moments(data, times)
            pair.check_reads(*(time for time in read if time is not None))
        pair.close()

    holds(law, ON_DISK, 12)


@pytest.mark.drawn(2, of="media")
def test_shuffle_arrival_does_not_matter_with_a_unique_seq_in_any_medium() -> None:
    went: Counter[str] = Counter()

    @covering(40)
    @given(st.data(), st.booleans(), st.sampled_from(["last", "first"]))
    def law(data: st.DataObject, holds_back: bool, tie: str) -> None:
        options = DECIDED | {"tie": tie, "seq": True, "order_by": ["o"]}
        scenario = data.draw(scenarios(holds_back=holds_back, **options))
        input = scenario["inputs"]["a"]
        rows = data.draw(events(input, most=14, least=4))
        rows = numbered(input, rows, data.draw(st.permutations(range(len(rows)))))
        shuffled = data.draw(splits(data.draw(st.permutations(rows))))
        with tiny() as seen:
            memory, door = EngineDoor(scenario), EngineDoor(scenario, medium=ALL)
            if holds_back:
                expected = merged([memory.push({"a": rows}), memory.advance_to(CLOSED)])
                found = merged([*(door.push({"a": part}) for part in shuffled), door.advance_to(CLOSED)])
                assert found == expected or ignored(input)
            else:
                memory.step({"a": rows}, 0)
                for time, part in enumerate(shuffled):
                    door.step({"a": part}, time)
            same_collections(scenario, memory, door)
            door.close()
        went.update(seen)

    law()
    assert {"a step taken in ranges", "a key found on disk", "pending events that were spilled"} - set(went) == set()

"""Test a spec and its merger: the result must not depend on how events are split into calls.

`invariance` tries random splits and, if the spec promises independence of the order of arrival, shuffles. On a failure
it raises with the fewest events that it finds. It also checks that the differences add up to the collection.
`aggregate_laws` tests a user-defined aggregate.

Limits: it finds counterexamples and proves nothing. Columns that do not count and late events may differ
(docs/semantics.md, section 6). A spec with ``expiry=`` is refused, because its results depend on the times of calls.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa

from ddflow.columns.declared import to_arrow_schema
from ddflow.columns.hashing import Secret, compute_value_hashes
from ddflow.columns.rows import row_values
from ddflow.connectors.to_arrow import to_table
from ddflow.engine.engine import Flow
from ddflow.errors import NotInvariant, SpecError
from ddflow.plan.aggregates import Aggregate
from ddflow.plan.inputs.spec import Upsert
from ddflow.time import CLOSED

INPUT = "events"
SECRET = Secret(1, 2)


@dataclass(frozen=True)
class Invariance:
    """The numbers of trials. ``shuffles`` is 0 if arrival may decide."""

    events: int
    splits: int
    shuffles: int

    def __str__(self) -> str:
        shuffled = f", {self.shuffles} shuffles" if self.shuffles else "; arrival decides, so no shuffles"
        return f"{self.events:,} events, {self.splits} splits{shuffled}"


def invariance(
    spec: Upsert,
    events: Any,
    schema: Any = None,
    *,
    rounds: int = 25,
    seed: int = 0,
    shuffled: bool | None = None,
    collection: Callable[[Flow], Any] | None = None,
) -> Invariance:
    """Compare the result of one call with random splits into calls and with shuffles of ``events``.

    ``events``: anything that speaks Arrow, in the order of arrival. ``schema``: of the input, by default the schema of
    ``events``. ``rounds``: the number of splits, and of shuffles. ``seed``: of the random choices. ``shuffled``:
    whether to shuffle, by default `Upsert.order_free`. ``collection``: builds the collection to compare from a new
    flow, by default its input, which must be called "events".

    Returns the numbers of trials. Raises `NotInvariant` with the fewest events that show a difference, `SpecError` for
    a spec with ``expiry=``, and any error of a step with these events. O(rounds * events).

    >>> import ddflow as dd
    >>> events = pa.table({"id": [1, 1, 2, 1], "at": [3, 1, 1, 2], "n": [1, 2, 3, 4]})
    >>> print(invariance(dd.Upsert("id", order_by="at", merge=dd.Merge({"n": dd.sum()})), events))
    4 events, 25 splits; arrival decides, so no shuffles
    >>> print(invariance(dd.Upsert("id", order_by="at", versions="cell", tie="greatest"), events))
    4 events, 25 splits, 25 shuffles
    """
    if spec.expiry is not None:
        raise SpecError(
            "dd.testing.invariance",
            "the spec has expiry=, whose horizon moves with the calls",
            "test it without; what is forgotten depends on how events are cut",
        )
    spec = replace(spec, lateness=None) if spec.lateness is not None else spec  # lateness depends on the calls
    table = to_table(events, repr(INPUT), pa.schema([]))
    declared = to_arrow_schema(table.schema if schema is None else schema, f"the schema of {INPUT!r}")
    trial = _Trial(spec, declared, table, collection or (lambda flow: flow.upserts(INPUT, declared, spec)))
    draw, n = Random(seed), table.num_rows
    rows = list(range(n))
    whole = trial.compute_outcome([rows])
    for _ in range(rounds):
        cuts = sorted({0, n, *(draw.randrange(n + 1) for _ in range(draw.randint(1, 6)))})
        calls = [rows[begin:end] for begin, end in pairwise(cuts)]
        if trial.compute_outcome(calls) != whole:
            _raise_smallest_example(trial, calls, "cut into calls")
    shuffle = spec.order_free if shuffled is None else shuffled
    for _ in range(rounds if shuffle else 0):
        draw.shuffle(rows)
        if trial.compute_outcome([rows]) != whole:
            _raise_smallest_example(trial, [list(rows)], "in another order of arrival")
    return Invariance(n, rounds, rounds if shuffle else 0)


class _Trial:
    """Runs a spec over chosen rows in chosen calls."""

    def __init__(self, spec: Upsert, schema: pa.Schema, table: pa.Table, collection: Callable[[Flow], Any]) -> None:
        self.spec, self.schema, self.table, self.collection = spec, schema, table, collection

    def compute_outcome(self, calls: Sequence[Sequence[int]]) -> Counter[int]:
        """Compute the final collection as hashes of its rows, and check that the differences add up to it."""
        flow = Flow()
        node = flow.output("out", self.collection(flow))
        total: Counter[int] = Counter()
        names = [n for n in node.schema.names if n in self.spec.key or self.spec.counts(n)] or node.schema.names
        with flow.open(secret=SECRET) as engine:
            given = [{INPUT: self.table.take(pa.array(rows, pa.int64()))} for rows in calls]
            steps = [
                engine.push(each) if flow.holds_back else engine.step(each, time) for time, each in enumerate(given)
            ]
            if flow.holds_back:
                steps.append(engine.advance_to(CLOSED))
            for step in steps:
                _add_rows(total, step["out"], names)
            live: Counter[int] = Counter()
            _add_rows(live, engine.read("out"), names)
        kept = Counter({row: n for row, n in total.items() if n})
        if kept != live:
            raise AssertionError("differences do not add up to the collection: a bug of ddflow")
        return kept

    def has_different_outcome(self, calls: Sequence[Sequence[int]]) -> bool:
        """Return whether these calls, and one call with all their rows in the table's order, give different
        collections.
        """
        return self.compute_outcome(calls) != self.compute_outcome([sorted(row for rows in calls for row in rows)])


def _add_rows(total: Counter[int], updates: pa.Table, names: list[str]) -> None:
    rows, diffs = compute_value_hashes(updates.select(names), SECRET).tolist(), updates.column("_diff").to_pylist()
    for row, diff in zip(rows, diffs, strict=True):
        total[row] += diff


def _raise_smallest_example(trial: _Trial, calls: list[list[int]], how: str) -> None:
    """Remove rows that the failure does not need, and raise `NotInvariant`."""
    size = max(sum(map(len, calls)) // 2, 1)
    while True:
        every = [row for rows in calls for row in rows]
        for begin in range(0, len(every), size):
            without = set(every[begin : begin + size])
            fewer = [left for rows in calls if (left := [row for row in rows if row not in without])]
            if fewer and trial.has_different_outcome(fewer):
                calls = fewer
                break
        else:
            if size == 1:
                break
            size //= 2
    shown = [[row_values(trial.table, row) for row in rows] for rows in calls]
    raise NotInvariant(
        "dd.testing.invariance",
        f"{how}, these events give another collection: {shown}",
        "make the merger independent of it, or document what it depends on",
    )


def aggregate_laws(aggregate: Aggregate, values: Sequence[int | float] | None = None, *, rounds: int = 100) -> int:
    """Check the laws of a user-defined aggregate: ``retract`` undoes ``add``, and the order does not matter.

    ``values``: two or more values to add. By default they are integers from -1,000 to 1,000 or, for a state with
    doubles, eighths of these, whose sums are exact. States are compared to the last bit, with -0.0 as 0.0. The
    functions are called as plain Python.

    Returns the number of rounds. Raises `NotInvariant` with the values that show a difference, and any error of the
    functions. O(rounds).

    >>> import ddflow as dd
    >>> mean = dd.Aggregate((0, 0), lambda s, x: (s[0] + x, s[1] + 1), lambda s, x: (s[0] - x, s[1] - 1),
    ...                     lambda s: s[0] / s[1])
    >>> aggregate_laws(mean)
    100
    """
    draw = Random(0)
    double = any(isinstance(each, float) for each in aggregate.zero)
    pool: list[Any] = [each / 8 if double else each for each in range(-1000, 1001)]
    pool = pool if values is None else list(values)
    if len(pool) < 2:
        raise SpecError("dd.testing.aggregate_laws", f"values= has {len(pool)}", "give two or more")
    add, retract, _ = (getattr(each, "py_func", each) for each in aggregate.functions)

    def fold(steps: Sequence[tuple[Any, Any]]) -> Any:
        state = aggregate.zero
        for function, value in steps:
            state = function(state, value)
        if not isinstance(state, tuple) or len(state) != len(aggregate.zero):
            found = f"{steps[-1][0].__name__} gives {state!r}, and a state is {aggregate.zero!r}"
            raise NotInvariant("dd.testing.aggregate_laws", found, "give a tuple of as many numbers")
        return tuple("nan" if each != each else each + 0 for each in state)

    for number in range(rounds):
        some = [draw.choice(pool) for _ in range(1 + number % 6)]
        other = draw.choice(pool)
        adds = [(add, each) for each in some]
        whole = fold(adds)
        undone = fold([*adds, (add, other), (retract, other)])
        before = fold([(retract, other), *adds, (add, other)])
        for found, how in (
            (undone, f"add({other}) and retract({other}) after {some}"),
            (before, f"retract({other}) before {some}, and add({other}) after"),
        ):
            if found != whole:
                raise NotInvariant(
                    "dd.testing.aggregate_laws",
                    f"{how} give {found}; without them it is {whole}",
                    "let retract undo add, whenever it comes",
                )
        shuffled = draw.sample(adds, len(adds))
        if (found := fold(shuffled)) != whole:
            told = f"the values {some} give {whole}, and {[each for _, each in shuffled]} give {found}"
            remedy = "keep what does not depend on the order, such as exact sums"
            raise NotInvariant("dd.testing.aggregate_laws", told, remedy)
    return rounds

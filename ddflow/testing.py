"""Test a spec and its merger. The result must not depend on how events are split into calls.

`invariance` tries random splits of the events into calls. If the spec promises that the order of arrival does not
matter, `invariance` also tries shuffles. If results differ, `invariance` raises `NotInvariant` with a small set of
events that shows the difference. `invariance` also checks that the sum of the differences is the collection.
`aggregate_laws` tests a user-defined aggregate.

Limits: the tests can find counterexamples, but cannot prove that there are none. The split into calls may affect how
late events are treated, and the values in columns whose changes are ignored (docs/semantics.md, section 6). A spec with
``expiry=`` and ``watermark=`` are refused, because their results depend on how events are split into calls.
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
    """The number of splits and shuffles that were tried.

    ``shuffles`` is 0 if the order of arrival may decide which event wins.
    """

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
    """Check that random splits of ``events`` into calls, and shuffles, have the same result as one call.

    ``events``: Arrow data of any kind, in the order of arrival. ``schema``: the schema of the input, by default that of
    ``events``. ``rounds``: the number of splits, and of shuffles. ``seed``: the seed of the random choices.
    ``shuffled``: whether to shuffle, by default `Upsert.order_free`. ``collection``: a function that builds the
    collection to compare from a new flow; its input must be called "events". By default the collection of the input is
    compared.

    Returns how many splits and shuffles were tried. Raises `NotInvariant` with a small set of events that shows a
    difference, `SpecError` for ``expiry=`` and ``watermark=``, and any error of a step with these events.

    O(rounds * events).

    >>> import ddflow as dd
    >>> events = pa.table({"id": [1, 1, 2, 1], "at": [3, 1, 1, 2], "n": [1, 2, 3, 4]})
    >>> print(invariance(dd.Upsert("id", order_by="at", merge=dd.Merge({"n": dd.sum()})), events))
    4 events, 25 splits; arrival decides, so no shuffles
    >>> print(invariance(dd.Upsert("id", order_by="at", versions="cell", tie="greatest"), events))
    4 events, 25 splits, 25 shuffles
    """
    if spec.expiry is not None or spec.watermark is not None:
        option = "watermark=" if spec.expiry is None else "expiry="
        raise SpecError(
            "dd.testing.invariance",
            f"the spec has {option}, so its results depend on how events are cut into calls",
            f"test the spec without {option}",
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
    """An object that runs a flow with the spec, over some of the rows and with a given split into calls."""

    def __init__(self, spec: Upsert, schema: pa.Schema, table: pa.Table, collection: Callable[[Flow], Any]) -> None:
        self.spec, self.schema, self.table, self.collection = spec, schema, table, collection

    def compute_outcome(self, calls: Sequence[Sequence[int]]) -> Counter[int]:
        """Compute the final collection as a multiset of row hashes. Check that it is the sum of the differences."""
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
        """Return whether these calls and one call with all their rows, in table order, have different results."""
        return self.compute_outcome(calls) != self.compute_outcome([sorted(row for rows in calls for row in rows)])


def _add_rows(total: Counter[int], updates: pa.Table, names: list[str]) -> None:
    rows, diffs = compute_value_hashes(updates.select(names), SECRET).tolist(), updates.column("_diff").to_pylist()
    for row, diff in zip(rows, diffs, strict=True):
        total[row] += diff


def _raise_smallest_example(trial: _Trial, calls: list[list[int]], how: str) -> None:
    """Remove rows as long as the results still differ, then raise `NotInvariant` with the remaining rows."""
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
        "make the merger independent of calls and arrival, or document what it depends on",
    )


def aggregate_laws(aggregate: Aggregate, values: Sequence[int | float] | None = None, *, rounds: int = 100) -> int:
    """Check the laws of a user-defined aggregate: ``retract`` undoes ``add``, and the order does not matter.

    ``values``: two or more values to add. The default values are the integers from -1,000 to 1,000. If the state has
    doubles, the default values are divided by 8, so that sums are exact. States are compared to the last bit, but -0.0
    counts as 0.0. The functions of the aggregate are called as plain Python.

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
        raise SpecError("dd.testing.aggregate_laws", f"values= has {len(pool)} values", "pass two or more")
    add, retract, _ = (getattr(each, "py_func", each) for each in aggregate.functions)

    def fold(steps: Sequence[tuple[Any, Any]]) -> Any:
        state = aggregate.zero
        for function, value in steps:
            state = function(state, value)
        if not isinstance(state, tuple) or len(state) != len(aggregate.zero):
            found = f"{steps[-1][0].__name__} returns {state!r}, but a state is like {aggregate.zero!r}"
            raise NotInvariant("dd.testing.aggregate_laws", found, "return a tuple with as many numbers")
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
                    "let retract undo add, in any order of calls",
                )
        shuffled = draw.sample(adds, len(adds))
        if (found := fold(shuffled)) != whole:
            told = f"the values {some} give {whole}, but {[each for _, each in shuffled]} give {found}"
            remedy = "use a state that does not depend on the order, such as exact sums"
            raise NotInvariant("dd.testing.aggregate_laws", told, remedy)
    return rounds

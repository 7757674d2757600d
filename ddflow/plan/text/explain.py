"""A plan as text: what each output is made of, what is kept of it, and by which columns rows meet.

Invariant: every collection of an output stands there once, whatever reads it; a second reader says so. Nothing is run
and nothing is looked up in a state: what an engine knows besides it hands in. Whether
rows move between partitions is said as Spark does it: rows stay where they are if those that must meet stand together
already. A plan is a graph, so it is walked without recursion, and its texts are cut where they are long.

>>> import pyarrow as pa
>>> from ddflow.plan.plan import Plan
>>> from ddflow.plan.inputs.spec import Upsert
>>> plan = Plan()
>>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id", null_key="drop"))
>>> by_city = plan.output("by_city", people.filter("id > 0").count("city"))
>>> print(explained(plan, {"by_city": by_city}))
output by_city: city string, count int64
└─ count(by=['city'])    rows move to their [city]; kept by [city]
   └─ filter('id > 0')
      └─ input people    rows move to their [id]; kept by [id]
            id int64, city string
            key=['id'], null_key='drop'
"""

import html
import json
from collections.abc import Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.errors import SpecError, cut
from ddflow.expressions import Expression
from ddflow.plan.collection import Collection, Columns, paired_inputs, stands_by
from ddflow.plan.inputs.input import Input
from ddflow.plan.plan import Plan
from ddflow.plan.text.formulas import Formulas, Record

MOST = 500
"""Lines that a notebook shows."""


class Explained(str):
    """A text of several lines that a prompt and a notebook show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Render the text for a notebook, in the notebook's colours."""
        lines = self.split("\n")
        more = [f"... and {len(lines) - MOST:,} lines more: print them"] if len(lines) > MOST else []
        text = html.escape("\n".join([*lines[:MOST], *more]))
        return f'<pre style="color: inherit; background: none">{text}</pre>'


class _Named:
    """A writer of formulas by name; two functions may share one."""

    def add(self, expression: Expression) -> dict[str, str]:
        """Describe the formula as JSON."""
        return Formulas().add(expression)

    def functions(self, given: Sequence[Any]) -> dict[str, str]:
        """Describe functions as JSON."""
        return Formulas().functions(given)


Figures = Mapping[Collection, Sequence[str]]
"""What else is to be said of collections."""


def explain(plan: Plan, name: str | None = None, figures: Figures | None = None) -> Explained:
    """Explain all outputs, or one output or input, as text.  O(nodes).  Raises `SpecError` for an unknown name."""
    return explained(plan, named(plan, name), figures)


def named(plan: Plan, name: str | None) -> Mapping[str, Collection]:
    """Select the collections to explain: all outputs, or all inputs if there are none, or the one called `name`."""
    known: dict[str, Collection] = {**plan.inputs, **plan.outputs}
    if name is None:
        return plan.outputs or plan.inputs
    if name not in known:
        raise SpecError("explain", f"there is no output or input {name!r}", did_you_mean(name, known), input=name)
    return {name: known[name]}


def explained(plan: Plan, roots: Mapping[str, Collection], figures: Figures | None = None) -> Explained:
    """Explain some collections, by name, as text."""
    paired = paired_inputs(plan.outputs.values())
    standing, seen, lines = standing_of(plan, paired), set[Collection](), list[str]()
    names: dict[Collection, str] = {node: name for name, node in plan.inputs.items()}
    entries: dict[Collection, Input] = {node: node for node in plan.inputs.values()}
    for name, root in roots.items():
        lines.append(
            f"output {name}: {columns_text(root.schema)}" if root not in names or name != names[root] else name
        )
        ahead = [(root, "", "└─ ", "   ")]
        while ahead:
            node, before, here, below = ahead.pop()
            again = node in seen
            seen.add(node)
            entry = entries.get(node)
            text, notes = written(node, names), notes_of(node, entry, standing, paired, root is node)
            notes += (figures or {}).get(node, ())
            note = "as above" if again else "; ".join(notes)
            lines.append(f"{before}{here}{text}" + (f"    {note}" if note else ""))
            inside = before + below
            if entry is not None and not again:
                lines += [f"{inside}   {said}" for said in (columns_text(entry.bound.schema), spec_text(entry)) if said]
            ends = [("└─ ", "   "), *[("├─ ", "│  ")] * (len(node.inputs) - 1)]
            if node.inputs and not again:
                ahead += [(of, inside, *end) for of, end in zip(reversed(node.inputs), ends, strict=True)]
    return Explained("\n".join(lines))


def columns_text(schema: pa.Schema) -> str:
    return cut(", ".join(f"{field.name} {field.type}" for field in schema))


def written(node: Collection, names: Mapping[Collection, str]) -> str:
    """Write an operator with its arguments."""
    if node in names:
        return f"input {names[node]}"
    record = Record(json.loads(json.dumps(node.to_json(_Named()))), "a plan")
    return cut(f"{node.verb}({type(node).text(record, [])})")


def spec_text(node: Input) -> str:
    """Write an input's spec without its defaults."""
    said = [f"{name}={value!r}" for name, value in json.loads(node.spec.to_json()).items()]
    return cut(", ".join(said if node.bound.format is None else [*said, f"format={node.bound.format!r}"]))


def notes_of(
    node: Collection,
    entry: Input | None,
    standing: Mapping[Collection, Columns | None],
    paired: Set[Collection],
    output: bool,
) -> list[str]:
    """Describe how a collection's rows move and are kept.  ``entry``: itself, if it is an input of the plan."""
    notes, meets = [], node.exchange()
    if entry is not None:
        meets = [tuple(entry.bound.key_schema.names)]
    if node.of_events:
        notes.append("told of events")
    elif node.looks:
        every = " and ".join(_which(by) for by in (meets[n] for n in node.looks) if by)
        notes.append(f"rows are looked up by {every}" if every else f"rows are looked up in {_which(())}")
    if not node.of_events:
        for n, (of, by) in enumerate(zip(node.inputs or [None], meets, strict=True)):
            if by is None or n in node.looks:
                continue
            stands = of is not None and by and stands_by(standing[of], by, exactly=node in paired)
            notes.append(f"rows stand by {_which(by)} already" if stands else f"rows move to their {_which(by)}")
            notes[-1] = notes[-1] if by else _which(by)
    if node.keeps:
        notes.append("kept" + "".join(f" by {_which(by)}" for n, by in enumerate(meets) if by and n not in node.looks))
    if output and not node.consolidated:
        notes.append("consolidated for the output")
    return [cut(note) for note in notes]


def _which(by: Columns) -> str:
    return f"[{', '.join(by)}]" if by else "one partition"


def standing_of(plan: Plan, paired: Set[Collection]) -> dict[Collection, Columns | None]:
    """Return the columns by which equal rows of each collection share a partition; None without any."""
    out: dict[Collection, Columns | None] = {node: tuple(node.bound.key_schema.names) for node in plan.inputs.values()}
    for node in plan.nodes:  # a collection stands behind what it is made of
        if node in out:
            continue
        before, by = {out[of] for of in node.inputs}, node.exchange()[0]
        stand = before.pop() if len(before) == 1 else None
        if by is not None and (len(node.inputs) > 1 or not stands_by(stand, by, exactly=node in paired)):
            stand = by
        out[node] = node.carried(stand)
    return out

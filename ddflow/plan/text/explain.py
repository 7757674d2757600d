"""Explain a plan as text or as SVG: the operators of each output, stored state, and partitioning columns.

Guarantees: within an output, the explanation shows each collection only once. Later uses of the collection refer to the
first use. In the picture, each box is below its inputs. User text is escaped, and equal plans give equal bytes.
Explaining runs nothing and reads no state.

Limits: long texts are cut.
"""

import html
import json
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from html import escape
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, overload

import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.errors import ErrorText, Option, SpecError, shorten
from ddflow.expressions import Expression
from ddflow.plan.collection import Collection, Columns, find_paired_inputs, is_partitioned_by, walk_inputs
from ddflow.plan.inputs.input import Input
from ddflow.plan.plan import Plan
from ddflow.plan.text.formulas import Formulas, JsonRecord
from ddflow.plan.watermarks import describe_watermarks
from ddflow.terminal import escape_text

MOST_LINES = 500
"""Maximum number of lines in a notebook."""


class PlanExplanation(str):
    """A text of several lines that a Python prompt or a notebook shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Render the text for a notebook, in the notebook's colours."""
        lines = self.split("\n")
        more = [f"... and {len(lines) - MOST_LINES:,} more lines: print them"] if len(lines) > MOST_LINES else []
        text = html.escape("\n".join([*lines[:MOST_LINES], *more]))
        return f'<pre style="color: inherit; background: none">{text}</pre>'


class _NamedFormulas:
    """A writer of formulas that identifies functions by name.

    Unlike `Formulas`, this class allows two functions with the same name.
    """

    def describe_formula(self, expression: Expression) -> dict[str, str]:
        """Describe the formula as JSON."""
        return Formulas().describe_formula(expression)

    def describe_functions(self, given: Sequence[Any]) -> dict[str, str]:
        """Describe functions as JSON."""
        return Formulas().describe_functions(given)


Figures = Mapping[Collection, Sequence[str]]
"""Additional notes for each collection, such as the number of rows."""


def explain_plan(plan: Plan, name: str | None = None, figures: Figures | None = None) -> PlanExplanation:
    """Explain all outputs, or only the output or input called ``name``, as text. O(nodes).

    Raises `SpecError` for an unknown name.
    """
    return explain_collections(plan, select_roots(plan, name), figures)


def select_roots(plan: Plan, name: str | None) -> Mapping[str, Collection]:
    """Select the collection called ``name``. Without a name, select all outputs.

    If there are no outputs, select all inputs.
    """
    known: dict[str, Collection] = {**plan.inputs, **plan.outputs}
    if name is None:
        return plan.outputs or plan.inputs
    if name not in known:
        raise SpecError(
            "explain", f"there is no output or input {name!r}", did_you_mean(name, known, "names"), input=name
        )
    return {name: known[name]}


def explain_collections(plan: Plan, roots: Mapping[str, Collection], figures: Figures | None = None) -> PlanExplanation:
    """Explain some collections as text. ``roots``: maps names to the collections.

    >>> import pyarrow as pa
    >>> from ddflow.plan.plan import Plan
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> plan = Plan()
    >>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id", null_key="drop"))
    >>> by_city = plan.output("by_city", people.filter("id > 0").count("city"))
    >>> print(explain_collections(plan, {"by_city": by_city}))
    output by_city: city string, count int64
    └─ count(by=['city'])    rows move to their [city]; kept by [city]
       └─ filter('id > 0')
          └─ input people    rows move to their [id]; kept by [id]
                id int64, city string
                key=['id'], null_key='drop'
    """
    paired = find_paired_inputs(plan.outputs.values())
    standing, seen, lines = find_partitioning(plan, paired), set[Collection](), list[str]()
    marks = describe_watermarks(plan)
    names: dict[Collection, str] = {node: name for name, node in plan.inputs.items()}
    entries: dict[Collection, Input] = {node: node for node in plan.inputs.values()}
    for name, root in roots.items():
        lines.append(
            f"output {name}: {format_columns(root.schema)}" if root not in names or name != names[root] else name
        )
        ahead = [(root, "", "└─ ", "   ")]
        while ahead:
            node, before, here, below = ahead.pop()
            again = node in seen
            seen.add(node)
            entry = entries.get(node)
            text, notes = write_operator(node, names), list_placement_notes(node, entry, standing, paired, root is node)
            notes += [marks[node]] if node in marks else []
            notes += (figures or {}).get(node, ())
            note = "as above" if again else "; ".join(notes)
            lines.append(f"{before}{here}{text}" + (f"    {note}" if note else ""))
            inside = before + below
            if entry is not None and not again:
                lines += [
                    f"{inside}   {said}" for said in (format_columns(entry.bound.schema), format_spec(entry)) if said
                ]
            ends = [("└─ ", "   "), *[("├─ ", "│  ")] * (len(node.inputs) - 1)]
            if node.inputs and not again:
                ahead += [(of, inside, *end) for of, end in zip(reversed(node.inputs), ends, strict=True)]
    return PlanExplanation("\n".join(lines))


def format_columns(schema: pa.Schema) -> str:
    return shorten(", ".join(f"{field.name} {field.type}" for field in schema))


def write_operator(node: Collection, names: Mapping[Collection, str]) -> str:
    """Write an operator with its arguments."""
    if node in names:
        return f"input {names[node]}"
    record = JsonRecord(json.loads(json.dumps(node.to_json(_NamedFormulas()))), "a plan")
    return shorten(f"{node.verb}({type(node).format_arguments(record, [])})")


def format_spec(node: Input) -> str:
    """Write the spec of an input, without options that have their default values."""
    said = [f"{name}={value!r}" for name, value in json.loads(node.spec.to_json()).items()]
    return shorten(", ".join(said if node.bound.format is None else [*said, f"format={node.bound.format!r}"]))


def list_placement_notes(
    node: Collection,
    entry: Input | None,
    standing: Mapping[Collection, Columns | None],
    paired: Set[Collection],
    output: bool,
) -> list[str]:
    """Describe how the rows of a collection move between partitions, and how the rows are stored.

    ``entry``: the collection if it is an input, or None.
    """
    notes, meets = [], node.exchange()
    if entry is not None:
        meets = [tuple(entry.bound.key_schema.names)]
    if node.of_events:
        notes.append("notified of events")
    elif node.looks:
        every = " and ".join(_format_key_columns(by) for by in (meets[n] for n in node.looks) if by)
        notes.append(f"rows are looked up by {every}" if every else f"rows are looked up in {_format_key_columns(())}")
    if not node.of_events:
        for n, (of, by) in enumerate(zip(node.inputs or [None], meets, strict=True)):
            if by is None or n in node.looks:
                continue
            stands = of is not None and by and is_partitioned_by(standing[of], by, exactly=node in paired)
            notes.append(
                f"rows are already partitioned by {_format_key_columns(by)}"
                if stands
                else f"rows move to their {_format_key_columns(by)}"
            )
            notes[-1] = notes[-1] if by else _format_key_columns(by)
    if node.keeps:
        notes.append(
            "kept"
            + "".join(f" by {_format_key_columns(by)}" for n, by in enumerate(meets) if by and n not in node.looks)
        )
    if output and not node.consolidated:
        notes.append("consolidated for the output")
    return [shorten(note) for note in notes]


def _format_key_columns(by: Columns) -> str:
    return f"[{', '.join(by)}]" if by else "one partition"


def find_partitioning(plan: Plan, paired: Set[Collection]) -> dict[Collection, Columns | None]:
    """Return the columns that partition the rows of each collection, or None for a collection without such columns."""
    out: dict[Collection, Columns | None] = {node: tuple(node.bound.key_schema.names) for node in plan.inputs.values()}
    for node in plan.nodes:  # inputs precede the collections built from them
        if node in out:
            continue
        before, by = {out[of] for of in node.inputs}, node.exchange()[0]
        stand = before.pop() if len(before) == 1 else None
        if by is not None and (len(node.inputs) > 1 or not is_partitioned_by(stand, by, exactly=node in paired)):
            stand = by
        out[node] = node.map_input_columns(stand)
    return out


BESIDE, BELOW, LANE, SWEEPS = 24.0, 44.0, 16.0, 8
"""In pixels: the gap between two boxes of a layer, the gap between two layers, and the width of a lane.

Then the number of layout rounds.
"""


class BoxSize(NamedTuple):
    """The size of a box, in pixels.

    >>> places = lay_out_boxes([BoxSize(40, 10), BoxSize(60, 10), BoxSize(50, 10)], [(), (), (0, 1)])
    >>> [(place.x, place.y) for place in places.boxes], places.width, places.height
    ([(20.0, 5.0), (94.0, 5.0), (57.0, 59.0)], 124.0, 64.0)
    """

    width: float
    height: float


class BoxCenter(NamedTuple):
    """The center of a box, in pixels."""

    x: float
    y: float


class BoxLayout(NamedTuple):
    """The layout of a picture. ``boxes``: the center of each box.

    ``edges``: for each box and input, the points of the edge between both, from top to bottom.
    """

    boxes: list[BoxCenter]
    edges: dict[tuple[int, int], list[BoxCenter]]
    width: float
    height: float


class _BoxLayers:
    """The boxes and lanes of each layer. A lane is the place where an edge crosses a layer.

    Lanes have numbers from ``len(sizes)`` upwards.
    """

    def __init__(self, sizes: Sequence[BoxSize], inputs: Sequence[Sequence[int]]) -> None:
        self.widths = [each.width for each in sizes]
        self.above: list[list[int]] = [[] for _ in sizes]
        self.lanes: dict[tuple[int, int], list[int]] = {}
        depth: list[int] = []
        for of in inputs:
            depth.append(1 + max((depth[each] for each in of), default=-1))
        self.layers: list[list[int]] = [[] for _ in range(1 + max(depth, default=-1))]
        for box, of in enumerate(inputs):
            self.layers[depth[box]].append(box)
            for n, each in enumerate(of):
                before = each
                self.lanes[box, n] = []
                for layer in range(depth[each] + 1, depth[box]):
                    lane = len(self.widths)
                    self.widths.append(LANE)
                    self.above.append([before])
                    self.layers[layer].append(lane)
                    self.lanes[box, n].append(lane)
                    before = lane
                self.above[box].append(before)
        self.below: list[list[int]] = [[] for _ in self.widths]
        for each, over in enumerate(self.above):
            for one in over:
                self.below[one].append(each)

    def sort_layers(self) -> None:
        """Sort each layer by the mean position of the connected boxes in the layer above.

        A second pass sorts each layer by the connected boxes in the layer below.
        """
        at = {each: float(n) for layer in self.layers for n, each in enumerate(layer)}
        for sweep in range(SWEEPS):
            joined = self.above if sweep % 2 == 0 else self.below
            for layer in self.layers if sweep % 2 == 0 else reversed(self.layers):
                layer.sort(key=lambda each: _compute_mean([at[one] for one in joined[each]], at[each]))
                at.update((each, float(n)) for n, each in enumerate(layer))

    def place_boxes(self) -> dict[int, float]:
        """Compute the horizontal center of each box."""
        x = dict[int, float]()
        for layer in self.layers:
            right = 0.0
            for each in layer:
                x[each] = right + self.widths[each] / 2
                right += self.widths[each] + BESIDE
        for sweep in range(SWEEPS):
            for layer in self.layers if sweep % 2 == 0 else reversed(self.layers):
                joined = [[*self.above[each], *self.below[each]] for each in layer]
                wanted = [
                    _compute_mean([x[one] for one in of], x[each]) for each, of in zip(layer, joined, strict=True)
                ]
                x.update(zip(layer, self._spread_boxes(layer, wanted), strict=True))
        left = min((x[each] - self.widths[each] / 2 for each in x), default=0.0)
        return {each: place - left for each, place in x.items()}

    def _spread_boxes(self, layer: list[int], wanted: list[float]) -> list[float]:
        """Position boxes without overlap, near the wanted positions.

        Each result is the mean of two positions: one from packing the boxes from the left, one from packing them from
        the right.
        """
        gaps = [(self.widths[one] + self.widths[other]) / 2 + BESIDE for one, other in pairwise(layer)]
        right, left = list(wanted), list(wanted)
        for n, gap in enumerate(gaps):
            right[n + 1] = max(right[n + 1], right[n] + gap)
        for n, gap in reversed(list(enumerate(gaps))):
            left[n] = min(left[n], left[n + 1] - gap)
        return [(one + other) / 2 for one, other in zip(right, left, strict=True)]


def _compute_mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def lay_out_boxes(sizes: Sequence[BoxSize], inputs: Sequence[Sequence[int]]) -> BoxLayout:
    """Lay out boxes. ``inputs``: for each box, the numbers of its input boxes.

    Each input box has a lower number than the box.
    """
    layers = _BoxLayers(sizes, inputs)
    layers.sort_layers()
    x, rows, top = layers.place_boxes(), dict[int, tuple[float, float]](), 0.0
    for layer in layers.layers:
        height = max((sizes[each].height for each in layer if each < len(sizes)), default=0.0)
        rows.update((each, (top, top + height)) for each in layer)
        top += height + BELOW
    width = max((x[each] + layers.widths[each] / 2 for each in x), default=0.0)
    edges = {edge: [BoxCenter(x[n], y) for n in lanes for y in rows[n]] for edge, lanes in layers.lanes.items()}
    boxes = [BoxCenter(x[each], sum(rows[each]) / 2) for each in range(len(sizes))]
    return BoxLayout(boxes, edges, width, max(top - BELOW, 0.0))


LETTER, LINE, AROUND, WIDE = 6.7, 15.0, 10.0, 44
"""In pixels: the width of a letter, the height of a line, and the margin around a text.

Then the maximum number of letters in a line.
"""
MOST_BOXES: Final = 60
"""If a plan has more collections than this number, a notebook shows text instead of a picture."""
TINTS: Final = {"input": "#4c8dff", "operator": "#888888", "kept": "#e8912d", "output": "#3fae5a"}
Kind = Literal["input", "operator", "kept", "output"]


class PlanDiagram(str):
    """A text of SVG that a notebook shows as a picture."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<PlanDiagram: SVG of {len(self):,} characters>"

    def _repr_svg_(self) -> str:
        return str(self)


class Box(NamedTuple):
    """A box with ``title`` and ``lines``. ``of``: the numbers of the input boxes."""

    kind: Kind
    title: list[str]
    lines: list[str]
    of: list[int]

    @property
    def size(self) -> BoxSize:
        """The size of the box, in pixels."""
        every = [*self.title, *self.lines]
        return BoxSize(max(map(len, every)) * LETTER + 2 * AROUND, len(every) * LINE + 2 * AROUND)


def draw_plan(plan: Plan, name: str | None = None, figures: Figures | None = None) -> PlanDiagram:
    """Draw all outputs, or only the output or input called ``name``. O(nodes). Raises `SpecError` for an unknown name.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", people.count("city"))
    >>> drawn = draw_plan(flow)
    >>> drawn[:4], drawn.count("<rect"), "input people" in drawn, "output by_city" in drawn
    ('<svg', 3, True, True)
    """
    boxes = _build_boxes(plan, select_roots(plan, name), figures or {})
    return PlanDiagram(_render_svg(boxes, lay_out_boxes([each.size for each in boxes], [each.of for each in boxes])))


def render_plan(
    plan: Plan, name: str | None, format: str, figures: Figures | None = None
) -> PlanExplanation | PlanDiagram:
    """Explain a plan as text or as a picture.  O(nodes).  Raises `SpecError` for an unknown name or format."""
    if format not in ("text", "svg"):
        raise SpecError(
            ErrorText("explain with ", Option("format", format)), "that is not a valid value", "use 'text' or 'svg'"
        )
    return explain_plan(plan, name, figures) if format == "text" else draw_plan(plan, name, figures)


def render_html(plan: Plan, figures: Figures | None = None) -> str:
    """Render a plan for a notebook, as a picture, or as text if the plan has many collections."""
    if len(plan.nodes) > MOST_BOXES:
        return explain_plan(plan, None, figures)._repr_html_()
    return f'<div style="overflow: auto">{draw_plan(plan, None, figures)}</div>'


def _build_boxes(plan: Plan, roots: Mapping[str, Collection], figures: Figures) -> list[Box]:
    paired = find_paired_inputs(plan.outputs.values())
    standing = find_partitioning(plan, paired)
    names: dict[Collection, str] = {node: name for name, node in plan.inputs.items()}
    entries: dict[Collection, Input] = {node: node for node in plan.inputs.values()}
    marks = describe_watermarks(plan)
    wanted = walk_inputs(roots.values())
    boxes, at = list[Box](), dict[Collection, int]()
    for node in (each for each in plan.nodes if each in wanted):  # inputs precede the collections built from them
        entry = entries.get(node)
        notes = list_placement_notes(node, entry, standing, paired, node in roots.values())
        notes += [*(() if entry is None else (format_columns(entry.bound.schema), format_spec(entry)))]
        notes += [marks[node]] if node in marks else []
        notes += figures.get(node, ())
        kind: Kind = "input" if entry is not None else "kept" if node.keeps else "operator"
        at[node] = len(boxes)
        of = [at[each] for each in node.inputs]
        boxes.append(
            Box(
                kind, _wrap_text(write_operator(node, names)), [line for each in notes for line in _wrap_text(each)], of
            )
        )
    for name, node in roots.items():
        if names.get(node) != name:
            boxes.append(
                Box("output", _wrap_text(f"output {name}"), _wrap_text(format_columns(node.schema)), [at[node]])
            )
    return boxes


def _wrap_text(text: str) -> list[str]:
    return textwrap.wrap(escape_text(text), WIDE)


def _render_svg(boxes: list[Box], layout: BoxLayout) -> str:
    width, height = layout.width + 2 * AROUND, layout.height + 2 * AROUND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-AROUND} {-AROUND} {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="ui-monospace, Menlo, Consolas, monospace" '
        'font-size="11" fill="currentColor" stroke="none">',
    ]
    for (box, n), lanes in layout.edges.items():
        first = boxes[box].of[n]
        begin, end = layout.boxes[first], layout.boxes[box]
        points = [(begin.x, begin.y + boxes[first].size.height / 2), *lanes]
        points.append((end.x, end.y - boxes[box].size.height / 2))
        curve = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
        for (x0, y0), (x1, y1) in pairwise(points):
            middle = (y0 + y1) / 2
            curve += f" C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}"
        parts.append(f'<path d="{curve}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>')
    for each, (x, y) in zip(boxes, layout.boxes, strict=True):
        wide, high = each.size
        left, top, tint = x - wide / 2, y - high / 2, TINTS[each.kind]
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="6" fill="{tint}" '
            f'fill-opacity="0.16" stroke="{tint}"/>'
        )
        for n, line in enumerate([*each.title, *each.lines]):
            how = ' font-weight="bold"' if n < len(each.title) else ' fill-opacity="0.75"'
            at = f'x="{left + AROUND:.1f}" y="{top + AROUND + (n + 0.75) * LINE:.1f}"'
            parts.append(f"<text {at}{how}>{escape(line)}</text>")
    return "\n".join([*parts, "</svg>"])


class Explaining(ABC):
    """The base of classes that can explain their plan.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> flow.explain(format="svg")[:4]
    '<svg'
    >>> flow.explain(format="png")
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: explain with format='png': that is not a valid value; use 'text' or 'svg'
    """

    @overload
    def explain(self, name: str | None = None, *, format: Literal["text"] = "text") -> PlanExplanation: ...
    @overload
    def explain(self, name: str | None = None, *, format: Literal["svg"]) -> PlanDiagram: ...
    def explain(
        self, name: str | None = None, *, format: Literal["text", "svg"] = "text"
    ) -> PlanExplanation | PlanDiagram:
        """Show the plan as text or as a picture.

        The plan includes the operators of each output, stored state, and partitioning columns. An engine or a snapshot
        also shows measured numbers. For a collection with stored rows, the numbers are rows, bytes in memory and bytes
        on disk, including the index. The explanation shows how many operators probe the stored rows, and which outputs
        share the rows. For each computed collection, the explanation shows the total time that the steps spent on the
        collection since the engine was opened.

        Parameters
        ----------
        name : str, optional
            The output or input to explain.  By default all outputs.
        format : {"text", "svg"}
            A tree of several lines, or a picture that needs no server or other program.

        Returns
        -------
        PlanExplanation or PlanDiagram
            A subclass of str.  A prompt shows it without quotes, and a notebook as text or as a picture.

        Raises
        ------
        SpecError
            If the name or format is unknown.

        Notes
        -----
        Explaining runs nothing. The times exclude reading your rows, writing state, and commits. O(nodes of the plan +
        stored runs).
        """
        return self._render_plan(name, format)

    @abstractmethod
    def _render_plan(self, name: str | None, format: str) -> PlanExplanation | PlanDiagram:
        """Build the text or the picture of the plan."""

"""A plan as a picture: inputs on top, operators below them, outputs at the bottom, as SVG.

Invariant: it says what `explain` says, each collection once. Lines and letters have the colour of the page's text, and
boxes are tinted, so that it can be read on a light and on a dark page. It needs no program and no server.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> _ = flow.output("by_city", people.count("city"))
>>> drawn = picture(flow)
>>> drawn[:4], drawn.count("<rect"), "input people" in drawn, "output by_city" in drawn
('<svg', 3, True, True)
"""

import textwrap
from collections.abc import Mapping
from html import escape
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from ddflow.errors import Option, Phrase, SpecError
from ddflow.plan.collection import Collection, paired_inputs, walk_inputs
from ddflow.plan.explain import (
    Explained,
    Figures,
    columns_text,
    explain,
    named,
    notes_of,
    spec_text,
    standing_of,
    written,
)
from ddflow.plan.input import Input
from ddflow.plan.layers import Drawing, Size, laid_out
from ddflow.plan.plan import Plan
from ddflow.terminal import printable

LETTER, LINE, AROUND, WIDE = 6.7, 15.0, 10.0, 44
"""Pixels of a letter, of a line and around a text; letters of a line."""
MOST: Final = 60
"""Collections of a picture in a notebook."""
TINTS: Final = {"input": "#4c8dff", "operator": "#888888", "kept": "#e8912d", "output": "#3fae5a"}
Kind = Literal["input", "operator", "kept", "output"]


class Picture(str):
    """SVG that a notebook shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Picture: SVG of {len(self):,} characters>"

    def _repr_svg_(self) -> str:
        return str(self)


class Box(NamedTuple):
    """A box with ``title`` and ``lines``.  ``of``: the numbers of the boxes before it."""

    kind: Kind
    title: list[str]
    lines: list[str]
    of: list[int]

    @property
    def size(self) -> Size:
        """The size in pixels."""
        every = [*self.title, *self.lines]
        return Size(max(map(len, every)) * LETTER + 2 * AROUND, len(every) * LINE + 2 * AROUND)


def picture(plan: Plan, name: str | None = None, figures: Figures | None = None) -> Picture:
    """Draw all outputs, or one output or input.  O(nodes).  Raises `SpecError` for an unknown name."""
    boxes = _boxes(plan, named(plan, name), figures or {})
    return Picture(_svg(boxes, laid_out([each.size for each in boxes], [each.of for each in boxes])))


def shown_as(plan: Plan, name: str | None, format: str, figures: Figures | None = None) -> Explained | Picture:
    """Explain a plan as text or as a picture.  O(nodes).  Raises `SpecError` for an unknown name or format."""
    if format not in ("text", "svg"):
        raise SpecError(Phrase("explain with ", Option("format", format)), "that is no choice", "use 'text' or 'svg'")
    return explain(plan, name, figures) if format == "text" else picture(plan, name, figures)


def html(plan: Plan, figures: Figures | None = None) -> str:
    """Render a plan for a notebook: its picture, or its text if it has many collections."""
    if len(plan.nodes) > MOST:
        return explain(plan, None, figures)._repr_html_()
    return f'<div style="overflow: auto">{picture(plan, None, figures)}</div>'


def _boxes(plan: Plan, roots: Mapping[str, Collection], figures: Figures) -> list[Box]:
    paired = paired_inputs(plan.outputs.values())
    standing = standing_of(plan, paired)
    names: dict[Collection, str] = {node: name for name, node in plan.inputs.items()}
    entries: dict[Collection, Input] = {node: node for node in plan.inputs.values()}
    wanted = walk_inputs(roots.values())
    boxes, at = list[Box](), dict[Collection, int]()
    for node in (each for each in plan.nodes if each in wanted):  # a collection stands behind what it is made of
        entry = entries.get(node)
        notes = notes_of(node, entry, standing, paired, node in roots.values())
        notes += [*(() if entry is None else (columns_text(entry.bound.schema), spec_text(entry)))]
        notes += figures.get(node, ())
        kind: Kind = "input" if entry is not None else "kept" if node.keeps else "operator"
        at[node] = len(boxes)
        of = [at[each] for each in node.inputs]
        boxes.append(
            Box(kind, _wrap_text(written(node, names)), [line for each in notes for line in _wrap_text(each)], of)
        )
    for name, node in roots.items():
        if names.get(node) != name:
            boxes.append(Box("output", _wrap_text(f"output {name}"), _wrap_text(columns_text(node.schema)), [at[node]]))
    return boxes


def _wrap_text(text: str) -> list[str]:
    return textwrap.wrap(printable(text), WIDE)


def _svg(boxes: list[Box], layout: Drawing) -> str:
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

"""Boxes of a graph laid out in layers: each below all that it is made of, with few crossings.

Invariant: no two boxes overlap, an edge leads downwards only, and an edge over several layers keeps a lane free in each
of them. The layout is the same for the same graph. It is made for plans: some hundred boxes, O(sweeps * edges *
log boxes).

>>> places = laid_out([Size(40, 10), Size(60, 10), Size(50, 10)], [(), (), (0, 1)])
>>> [(place.x, place.y) for place in places.boxes], places.width, places.height
([(20.0, 5.0), (94.0, 5.0), (57.0, 59.0)], 124.0, 64.0)
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

BESIDE, BELOW, LANE, SWEEPS = 24.0, 44.0, 16.0, 8
"""Pixels between boxes of a layer, and between layers; of a lane; how often the order and the places are improved."""


class Size(NamedTuple):
    """The size of a box, in pixels."""

    width: float
    height: float


class Point(NamedTuple):
    """The middle of a box, in pixels."""

    x: float
    y: float


class Drawing(NamedTuple):
    """A layout.  ``boxes``: by number.  ``edges``: by box and input, the ends of an edge's lanes, downwards."""

    boxes: list[Point]
    edges: dict[tuple[int, int], list[Point]]
    width: float
    height: float


class _Layers:
    """Boxes and lanes by layer.  Numbers from ``len(sizes)`` on are lanes."""

    def __init__(self, sizes: Sequence[Size], inputs: Sequence[Sequence[int]]) -> None:
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

    def order(self) -> None:
        """Move boxes of a layer towards what they are joined to, in the layer above, then below."""
        at = {each: float(n) for layer in self.layers for n, each in enumerate(layer)}
        for sweep in range(SWEEPS):
            joined = self.above if sweep % 2 == 0 else self.below
            for layer in self.layers if sweep % 2 == 0 else reversed(self.layers):
                layer.sort(key=lambda each: _mean([at[one] for one in joined[each]], at[each]))
                at.update((each, float(n)) for n, each in enumerate(layer))

    def columns(self) -> dict[int, float]:
        """Place the middle of each box, left to right."""
        x = dict[int, float]()
        for layer in self.layers:
            right = 0.0
            for each in layer:
                x[each] = right + self.widths[each] / 2
                right += self.widths[each] + BESIDE
        for sweep in range(SWEEPS):
            for layer in self.layers if sweep % 2 == 0 else reversed(self.layers):
                joined = [[*self.above[each], *self.below[each]] for each in layer]
                wanted = [_mean([x[one] for one in of], x[each]) for each, of in zip(layer, joined, strict=True)]
                x.update(zip(layer, self._apart(layer, wanted), strict=True))
        left = min((x[each] - self.widths[each] / 2 for each in x), default=0.0)
        return {each: place - left for each, place in x.items()}

    def _apart(self, layer: list[int], wanted: list[float]) -> list[float]:
        """Move places near the wanted ones, without overlap: the mean of packing from either side."""
        gaps = [(self.widths[one] + self.widths[other]) / 2 + BESIDE for one, other in pairwise(layer)]
        right, left = list(wanted), list(wanted)
        for n, gap in enumerate(gaps):
            right[n + 1] = max(right[n + 1], right[n] + gap)
        for n, gap in reversed(list(enumerate(gaps))):
            left[n] = min(left[n], left[n + 1] - gap)
        return [(one + other) / 2 for one, other in zip(right, left, strict=True)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def laid_out(sizes: Sequence[Size], inputs: Sequence[Sequence[int]]) -> Drawing:
    """Lay out boxes.  ``inputs``: for each box the numbers of the boxes before it.  Pure."""
    layers = _Layers(sizes, inputs)
    layers.order()
    x, rows, top = layers.columns(), dict[int, tuple[float, float]](), 0.0
    for layer in layers.layers:
        height = max((sizes[each].height for each in layer if each < len(sizes)), default=0.0)
        rows.update((each, (top, top + height)) for each in layer)
        top += height + BELOW
    width = max((x[each] + layers.widths[each] / 2 for each in x), default=0.0)
    edges = {edge: [Point(x[n], y) for n in lanes for y in rows[n]] for edge, lanes in layers.lanes.items()}
    boxes = [Point(x[each], sum(rows[each]) / 2) for each in range(len(sizes))]
    return Drawing(boxes, edges, width, max(top - BELOW, 0.0))

"""Find the columns that carry a watermark, and the collections that forget rows below it.

A column of a collection carries a watermark if no later update touches a row whose value is below a bound. The bound
is computed from the horizons of inputs. A collection forgets rows by a column of its groups, because no later update
looks up a group below the bound.

Guarantees: the outputs are the same as without watermarks, as long as no event is late.
Limits: a join column carries the lower watermark of both sides, so both sides need one.

>>> import pyarrow as pa
>>> from ddflow.plan.plan import Plan
>>> plan = Plan()
>>> clicks = plan.updates("clicks", {"at": pa.timestamp("us"), "url": pa.string()}, watermark={"at": "1 hour"})
>>> by_hour = plan.output("by_hour", clicks.project({"hour": "date_trunc('hour', at)"}).count())
>>> {node.verb: rule.column for node, rule in find_forgetting_rules(plan).items()}
{'count': 'hour'}
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from ddflow.columns.order_words import compute_watermark_words
from ddflow.errors import ExpressionError
from ddflow.plan.collection import Collection, Columns, WatermarkStep, walk_inputs
from ddflow.plan.inputs.watermark import BoundWatermark
from ddflow.plan.plan import Plan


class WatermarkTerm(NamedTuple):
    """The watermark of an input, and the functions that map its horizon to a column of a collection."""

    mark: BoundWatermark
    steps: tuple[WatermarkStep, ...] = ()

    def map_word(self, word: int) -> int | None:
        """Map a word of the input's column to a word of the collection's column, or to None if that is not possible."""
        if not self.steps:
            return word
        try:
            value = self.mark.decode_word(word)
            for step in self.steps:
                value = step(value)
        except (ExpressionError, pa.ArrowInvalid, OverflowError):  # a value outside of the range of a type
            return None
        return None if not len(value) or value.null_count else int(compute_watermark_words(value)[0][0])


_COMPARABLE: Final = re.compile(r"(?:list<\w+: |struct<\w+: )*(?:u?int|date|timestamp)")
"""The types of columns with a watermark: integers, times, windows of time and lists of windows."""
Terms = tuple[WatermarkTerm, ...]
"""The watermarks whose least bound holds for a column."""


class ForgettingRule(NamedTuple):
    """The rule by which a collection forgets rows: all rows whose value in a column is below the least bound."""

    column: str
    terms: Terms

    def find_least(self, words: Mapping[str, int]) -> int | None:
        """Find the least word of the column that follows from words of the inputs. None if an input has no word."""
        found = [term.map_word(words[term.mark.input]) for term in self.terms if term.mark.input in words]
        known = [word for word in found if word is not None]
        return min(known) if len(known) == len(self.terms) else None


class Horizons:
    """The horizons of the inputs of an opened plan.

    ``extents``: the least and the greatest word of each watermark's column in all earlier steps.

    >>> mark = BoundWatermark("clicks", pa.field("at", pa.int64()), 10, in_key=True)
    >>> horizons, rule = Horizons({"clicks": mark}), ForgettingRule("at", (WatermarkTerm(mark),))
    >>> horizons.set_extents({"clicks": (5, 20)})
    >>> horizons.words, horizons.find_bound(rule), horizons.has_forgotten(rule)
    ({'clicks': 10}, 10, True)
    """

    def __init__(self, marks: Mapping[str, BoundWatermark]) -> None:
        self.marks, self.extents = marks, dict[str, tuple[int, int]]()
        self.words: dict[str, int] = {}
        """The horizons by input."""
        self._bounds: dict[ForgettingRule, int | None] = {}

    def set_extents(self, extents: dict[str, tuple[int, int]]) -> None:
        """Set the extents.  O(inputs)."""
        if extents != self.extents:
            self.extents, self._bounds = extents, {}
            self.words = {name: self.marks[name].compute_horizon(greatest) for name, (_, greatest) in extents.items()}

    def find_bound(self, rule: ForgettingRule) -> int | None:
        """Find the word below which a collection forgets rows, or None if an input has had no row below its horizon."""
        if rule not in self._bounds:
            known = {name: word for name, word in self.words.items() if word > self.extents[name][0]}
            self._bounds[rule] = rule.find_least(known)
        return self._bounds[rule]

    def has_forgotten(self, rule: ForgettingRule) -> bool:
        """Tell whether rows that the collection may have had are below the bound."""
        bound = self.find_bound(rule)
        least = rule.find_least({name: least for name, (least, _) in self.extents.items()})
        return bound is not None and (least is None or least < bound)


Watermarks = dict[str, Terms]
"""The watermark of each column that carries one."""


def find_watermarks(plan: Plan) -> dict[Collection, Watermarks]:
    """Find the columns that carry a watermark, for each collection.  O(nodes and their columns)."""
    found: dict[Collection, Watermarks] = {}
    for input in plan.inputs.values():
        if (mark := input.bound.watermark) is not None:
            found[input] = {mark.field.name: (WatermarkTerm(mark),)}
    for node in plan.nodes if found else ():
        if node.inputs and any(found.get(of) for of in node.inputs):
            found[node] = _derive_watermarks(node, found)
    return found


def _derive_watermarks(node: Collection, found: Mapping[Collection, Watermarks]) -> Watermarks:
    """Derive the watermarks of an operator. A column needs a watermark in each input that gives rows."""
    out: Watermarks = {}
    maps = [(of, node.map_watermark_columns(at)) for at, of in enumerate(node.inputs)]
    given = [(of, columns) for of, columns in maps if columns is not None]
    for field in node.schema:
        terms: list[WatermarkTerm] = []
        for of, columns in given:
            name, step = columns.get(field.name, ("", None))
            its = found.get(of, {}).get(name, ())
            if (
                not its
                or not _COMPARABLE.match(str(field.type))
                or (step is None and of.schema.field(name).type != field.type)
            ):
                break
            terms += its if step is None else [term._replace(steps=(*term.steps, step)) for term in its]
        else:
            out |= {field.name: tuple(dict.fromkeys(terms))} if terms else {}
    return out


def find_forgetting_rules(plan: Plan) -> dict[Collection, ForgettingRule]:
    """Find the collections with state that forget rows.  O(nodes and their columns)."""
    found, out = find_watermarks(plan), dict[Collection, ForgettingRule]()
    needed = walk_inputs([*plan.inputs.values(), *plan.outputs.values()]) if found else set()
    readers = [node for node in plan.nodes if node.looks and node in needed]
    for node in plan.nodes:
        # Rows that wait for a time are due even if no event touches them any more.
        if (
            node in needed
            and node.keeps
            and not node.reads_clock
            and (rule := _find_rule(node, found, readers)) is not None
        ):
            out[node] = rule
    return out


def _find_rule(
    node: Collection, found: Mapping[Collection, Watermarks], readers: Sequence[Collection]
) -> ForgettingRule | None:
    """Find the rule of a collection: the first group column whose old values no later update looks up.

    ``readers``: the operators that look up rows of other collections.
    """
    own = found.get(node.inputs[0] if node.inputs else node, {})
    for column in [name for name in _list_group_columns(node) if name in own and name in node.schema.names]:
        terms, kind = list(own[column]), node.schema.field(column).type
        for other, name in _list_lookups(node, column, readers):
            its = found.get(other, {}).get(name, ())
            if not its or other.schema.field(name).type != kind:
                break
            terms += its
        else:
            return ForgettingRule(column, tuple(dict.fromkeys(terms)))
    return None


def _list_group_columns(node: Collection) -> Columns:
    """List the columns by which a collection with state looks up its rows. Empty for an operator of several inputs."""
    if not node.inputs:
        return tuple(node.bound.key_schema.names)
    return (node.exchange()[0] or ()) if len(node.inputs) == 1 else ()


def _list_lookups(node: Collection, column: str, readers: Sequence[Collection]) -> Iterator[tuple[Collection, str]]:
    """Yield the columns of other collections whose values later updates use to look up values of a group column.

    If an operator looks up rows by other columns, yield a column that does not exist.
    """
    for reader in readers:
        keys = [by or () for by in reader.exchange()]
        for at in reader.looks:
            for other, by in zip(reader.inputs, keys, strict=True) if reader.inputs[at] is node else ():
                if column not in keys[at]:
                    yield other, ""
                elif other is not node:
                    yield other, by[keys[at].index(column)]


def describe_watermarks(plan: Plan) -> dict[Collection, str]:
    """Describe for each collection which rows it forgets, or where a watermark ends and why.  O(nodes)."""
    found, rules, out = find_watermarks(plan), find_forgetting_rules(plan), dict[Collection, str]()
    for node, marks in found.items():
        if node in rules:
            inputs = sorted({term.mark.input for term in rules[node].terms})
            out[node] = f"forgets rows by {rules[node].column}, below the watermark of {', '.join(inputs)}"
        elif node.keeps:
            searched = {*_list_group_columns(node)} & {*(found.get(node.inputs[0], {}) if node.inputs else marks)}
            why = "a join searches them by columns without one" if searched else "no group column has one"
            out[node] = f"keeps all rows in spite of the watermark, because {why}"
        elif not marks:
            out[node] = "the watermark ends here, because no column has it from all inputs"
    return out

"""Find the input rows from which rows of an output were made, by going backwards through the plan.

Each operator names the input rows from which it makes given output rows (`Collection.find_contributing_rows`). If
several operators name rows of the same collection, the result has all these rows. Guarantees: each found row of a
collection is held at the requested time. Limits: some rows exist because another row is absent, as in an anti join. The
answer does not show this absence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import RESERVED, did_you_mean
from ddflow.columns.row_match import RowMatcher
from ddflow.connectors.to_arrow import is_rows, to_table
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Keep, select_matching_updates, trace_columns
from ddflow.engine.lineage.key_history import build_key_history, convert_to_column_type
from ddflow.engine.lineage.log_parts import MARKS, iterate_parts
from ddflow.engine.lineage.story import Origins, Story
from ddflow.engine.read.history import subtract_rows
from ddflow.engine.run.source_reader import find_source_feed
from ddflow.errors import ErrorText, NotReadable
from ddflow.operators.row_order import RowOrder
from ddflow.operators.updates import Updates, consolidate
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.inputs.spec import Upsert

MOST: Final = 100
"""The maximum number of output rows that one call explains, and the maximum number of keys of an input with a story."""


def find_origin_rows(
    dataflow: Dataflow, name: str, row: Any, as_of: int, log: Any = None, after: int | None = None
) -> Origins:
    """Find the input rows from which the output rows with the values ``row`` were made, as of a closed time.

    ``row``: values by column. ``log``: a mapping of input to log, or the log of the only upsert input. ``after``: an
    earlier closed time. With ``after``, the answer has the changes since the time ``after``, and no unchanged rows. An
    input row is considered if an output row was made from this input row at the closed time or at the earlier time.
    O(rows of all collections that the output depends on), plus O(events) for each key with a story. Raises
    `NotReadable`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", people.group_by("city").agg(n="count(*)"))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"people": {"id": [1, 2, 3], "city": ["Bern", "Chur", "Bern"]}})
    ...     print(engine.why("by_city", {"city": "Bern"}))
    1 row of 'by_city' as of 1
      (city='Bern', n=2)
    is made of 2 rows of 'people'
      (id=1, city='Bern')
      (id=3, city='Bern')
    """
    asked = f"why of {name!r} with {list(row) if isinstance(row, Mapping) else repr(row)[:99]}"
    graph, node = dataflow.graph, dataflow.flow.outputs[name]
    nodes, alike = list_ancestors(dataflow, node), RowMatcher(graph.secret)
    inputs = {graph.names[each]: each for each in nodes if each in graph.names}
    if lost := graph.list_stateless_inputs(*nodes):
        why, option = graph.explain_missing_rows(lost)
        found = f"it is made of rows of the inputs {lost}, which are {why}"
        raise NotReadable(asked, found, ErrorText(option, " to keep them"))
    given = _parse_wanted_values(node, row, asked)
    told = trace_columns(nodes, dict(zip(given.schema.names, given.schema.names, strict=True)))

    keep = _make_row_filter(given, told, alike)
    made = graph.accumulate_collections(nodes, as_of, keep)
    held = _consolidate_tables(made, graph.secret)
    wanted = _collect_origin_rows(nodes, given, held, alike, asked)
    if after is not None:
        before = graph.accumulate_collections(nodes, after, keep)
        earlier = _collect_origin_rows(nodes, given, _consolidate_tables(before, graph.secret), alike, asked)
        net = {each: subtract_rows(made[each], before[each], graph.secret) for each in nodes}
        held = _consolidate_tables(net, graph.secret)
        both = {each: pa.concat_tables([wanted[each], earlier[each]]) for each in nodes}
        wanted = {each: alike.select_matches(held[each], both[each], each.schema.names) for each in nodes}
    rows_of = {of: _sort_rows(wanted[each], each, graph.secret) for of, each in inputs.items()}
    shown = _sort_rows(wanted[node], node, graph.secret)
    stories = () if log is None else _build_key_histories(dataflow, rows_of, log, asked)
    sources = {each: fed for each in inputs if (fed := find_source_feed(dataflow.sources, each)) is not None}
    near = {of: _sort_rows(held[each], each, graph.secret) for of, each in inputs.items() if told[each]}
    there = shown.num_rows if after is None else sum(rows.num_rows for rows in rows_of.values())
    kind = dataflow.flow.time_type
    return Origins(name, as_of, shown, rows_of, stories, kind, sources, {} if there else near, after)


def _collect_origin_rows(
    nodes: Sequence[Collection], given: pa.Table, held: Mapping[Collection, pa.Table], alike: RowMatcher, asked: str
) -> dict[Collection, pa.Table]:
    """For each collection, collect the rows behind the rows of the last collection that have the values ``given``.

    Raises `NotReadable` if more than `MOST` rows of the last collection have these values.
    """
    node = nodes[-1]
    wanted = {node: alike.select_matches(held[node], given, given.schema.names)}
    if (rows := wanted[node].num_rows) > MOST:
        found = f"{rows:,} of its rows have these values, but one call explains at most {MOST}"
        raise NotReadable(asked, found, f"pass values of more columns of {node.schema.names}")
    for each in reversed(nodes):
        if each.inputs:
            parts = each.find_contributing_rows(wanted[each], [held[of] for of in each.inputs], alike)
            for of, part in zip(each.inputs, parts, strict=True):
                both = [part] if of not in wanted else [wanted[of], part]
                wanted[of] = alike.select_matches(held[of], pa.concat_tables(both), of.schema.names)
    return wanted


def _consolidate_tables(made: Mapping[Collection, Updates], secret: Secret) -> dict[Collection, pa.Table]:
    """Consolidate the updates of each collection. Return the rows of each collection with the column ``_diff``."""
    return {each: consolidate(rows, secret).to_table(each.schema, None) for each, rows in made.items()}


def find_matching_rows(
    dataflow: Dataflow, node: Collection, given: Mapping[str, pa.Array], as_of: int | None
) -> Updates:
    """Return the rows of a collection whose columns have the values ``given``.

    O(rows of all collections that the collection depends on).
    """
    told = trace_columns(list_ancestors(dataflow, node), {name: name for name in given})
    keep = _make_row_filter(pa.table(dict(given)), told, RowMatcher(dataflow.secret))
    return dataflow.graph.accumulate_collections([node], as_of, keep)[node]


def _make_row_filter(given: pa.Table, told: Mapping[Collection, Mapping[str, str]], alike: RowMatcher) -> Keep:
    """Make a filter that keeps those rows of each collection that have the values ``given``."""
    return lambda of, rows: select_matching_updates(rows, given, told[of], alike) if told[of] else rows


def _sort_rows(rows: pa.Table, node: Collection, secret: Secret) -> pa.Table:
    """Sort rows of a collection by all columns, starting with the first column. O(n log n)."""
    order = RowOrder(node.schema, [], [], secret, 0)
    return rows.take(pa.array(order.sort_rows(rows, np.zeros(rows.num_rows, np.int64)))) if rows.num_rows else rows


def list_ancestors(dataflow: Dataflow, node: Collection) -> list[Collection]:
    """List a collection and all collections that it depends on. Each collection comes after its inputs."""
    found = walk_inputs([node])
    return [each for each in dataflow.flow.nodes if each in found]


def _parse_wanted_values(node: Collection, row: Any, asked: str) -> pa.Table:
    """Convert the requested values to a table with one row. Raises `NotReadable`."""
    if not isinstance(row, Mapping) or not row.keys() - set(RESERVED):
        raise NotReadable(asked, "an output has no key", f"pass values by column, of {node.schema.names}")
    fields, columns = [], []
    for column, value in row.items():
        if column in RESERVED:  # rows from a read have reserved columns
            continue
        if column not in node.schema.names:
            raise NotReadable(
                asked, f"there is no column {column!r}", did_you_mean(column, node.schema.names), column=column
            )
        fields.append(node.schema.field(column).with_nullable(True))
        columns.append(convert_to_column_type(fields[-1], value, asked))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _build_key_histories(dataflow: Dataflow, rows: Mapping[str, pa.Table], log: Any, asked: str) -> tuple[Story, ...]:
    """Build the stories of the keys of the found input rows, using logs. Raises `NotReadable`."""
    keyed = [name for name in rows if isinstance(dataflow.flow.inputs[name].spec, Upsert)]
    if not isinstance(log, Mapping):
        if len(keyed) != 1:
            raise NotReadable(asked, f"it depends on the upsert inputs {keyed}", "pass a log for each: {input: log}")
        log = {keyed[0]: log}
    out = list[Story]()
    for name, parts in log.items():
        if name not in keyed:
            found = f"there is a log of {name!r}, but the output depends on no such upsert input"
            raise NotReadable(asked, found, did_you_mean(name, keyed, "names"))
        again = _make_log_rereadable(parts, repr(name))
        keys = rows[name].select(dataflow.flow.inputs[name].spec.key).slice(0, MOST)
        out += [build_key_history(dataflow, name, key, again) for key in keys.to_pylist()]
    return tuple(out)


def _make_log_rereadable(log: Any, what: str) -> Any:
    """Return a log that can be read several times. If necessary, its parts are kept in memory."""
    if isinstance(log, Iterable) and not is_rows(log) and not isinstance(log, Iterator | Sequence):
        return log
    parts = list[Any]()
    for part in iterate_parts(log, what):
        held = to_table(part.rows if isinstance(part, MARKS) else part, what, pa.schema([]))
        parts.append(replace(part, rows=held) if isinstance(part, MARKS) else held)
    return parts

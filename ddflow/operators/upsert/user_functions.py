"""Call user functions in a step: mergers and state machines.

A merger computes the merged columns of a row. A state machine computes one column, from a table of transitions or with
a function.

Guarantees: a function gets the events of a key in their order. An error names the key and leaves the state unchanged.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Ints, unpack_validity
from ddflow.columns.rows import row_values
from ddflow.columns.schema import column_arrays
from ddflow.errors import IllegalTransition, MergerFailed
from ddflow.kernels.fold import CLEAR, LAST as LATEST, NOTHING, SKIP, TAKE, EventsByKey, choose_cells
from ddflow.kernels.gather import SLOT
from ddflow.kernels.user_functions import CHANGED, FINE, NULL, build_merge_loop, to_record_array
from ddflow.kernels.walk import NONE, ROW
from ddflow.operators.upsert.folds import PriorCells, fold_cells
from ddflow.operators.upsert.walking import WalkedEvents
from ddflow.plan.merge.bound import MergedColumn
from ddflow.plan.merge.strategy import first, last_non_null
from ddflow.plan.merge.user_function import (
    NULL as NULL_FLAG,
    EventChains,
    Merger,
    build_column_from_records,
    build_record_type,
    concatenate_rows,
    convert_to_records,
    describe_fields,
    find_function_name,
    is_record_type,
    pick_rows,
)


def compute_merged_columns(of: WalkedEvents) -> dict[str, Ints | pa.Array]:
    """Compute the merged columns by key and time. As in `fold_cells`, the result has references or cells.

    O(events), plus the cost of the function. Raises `MergerFailed`; the state stays unchanged.

    >>> import pyarrow.compute as pc
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.plan.merge.merge import Merge
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.upsert import RunningUpsert
    >>> from ddflow.plan.inputs.spec import Upsert as Spec
    >>> schema = pa.schema({"k": pa.int64(), "n": pa.int64()})
    >>> def product(held, given):
    ...     return given.set_column(1, "n", pc.multiply(held["n"], given["n"]))
    >>> upsert = RunningUpsert(bind_upserts("visits", schema, Spec("k", merge=Merge(function=product))), Secret(1, 2))
    >>> events = pa.record_batch({"k": [1, 1, 1], "n": [5, 2, 3]}, schema)
    >>> merged = upsert.resolve(Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2)), ints(0), since=0)
    >>> merged.updates(schema).to_table(schema, None).to_pylist()
    [{'k': 1, 'n': 30, '_diff': 1}]
    """
    if of.merging.scalar:
        return _fold_by_function(of)
    fixed = _list_fixed_columns(of)
    derived = {field.name for field, _ in of.merging.derived}
    schema = pa.schema([f.with_nullable(f.nullable or f.name in derived) for f in of.upsert.bound.unstamped_row_schema])
    chains = EventChains(of.steps, of.action[0])
    count = int(chains.offsets[1]) if len(chains) else 0
    keys = chains.keys[:count]
    held = _gather_held_rows(of, schema, keys)
    given = pick_rows(_build_event_rows(of, schema), chains.rows)
    assert of.merging.function is not None
    made = Merger(of.merging.function, of.upsert.bound.name, schema, fixed, of.upsert.secret).fold_event_chains(
        chains, given, held, of.cells[keys] != NOTHING
    )
    ends = made.num_rows
    still = np.flatnonzero(chains.shown >= ends)
    if still.size:
        # At a time without a folded event, a key has its stored row.
        rest = _gather_held_rows(of, schema, chains.shown[still] - ends)
        chains.shown[still] = ends + np.arange(still.size)
        made = concatenate_rows([made, rest], made.schema)
    return {each.name: made.column(each.name).take(pa.array(chains.shown)) for each in of.merging.columns}


def _list_fixed_columns(of: WalkedEvents) -> list[str]:
    """List the columns that no function may change: the key columns and the order columns of the row."""
    names = [*of.upsert.bound.spec.key, *(field.name for field in of.merging.groups[0].order)]
    return [name for name in of.upsert.bound.row_schema.names if name in names]


def _gather_held_rows(of: WalkedEvents, schema: pa.Schema, keys: Ints) -> pa.RecordBatch:
    """Gather the stored rows of the given keys, with nulls for keys without a row."""
    derived = {field.name for field, _ in of.merging.derived}
    found = [pa.nulls(keys.size, f.type) if f.name in derived else of.gather_cells(of.cells[keys], f) for f in schema]
    return pa.RecordBatch.from_arrays(found, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _build_event_rows(of: WalkedEvents, schema: pa.Schema) -> pa.RecordBatch:
    """Build the rows of the events."""
    rows, derived = of.events.rows, {field.name for field, _ in of.merging.derived}
    orders = {field.name: field for field in of.merging.groups[0].order}
    out = []
    for field in schema:
        if field.name in derived:
            out.append(pa.nulls(rows.num_rows, field.type))
        elif field.name in orders:
            out.append(fill_orders_from_prior(of, orders[field.name]))
        else:
            out.append(rows.column(field.name))
    return pa.RecordBatch.from_arrays(out, schema=pa.schema([field.with_nullable(True) for field in schema]))


def fill_orders_from_prior(of: WalkedEvents, field: pa.Field) -> pa.Array:
    """Replace nulls in an order column of the events with the stored order of their key.

    O(n), or O(1) if there are no nulls.
    """
    column, steps, n = of.events.rows.column(field.name), of.steps, of.events.times.size
    if not column.null_count:
        return column
    kept, cells = of.order.keeps, of.merging.cells
    begins = steps.key_times[steps.keys] if kept else steps.key_times
    places = steps.permutation.size  # less than the number of events, if some have no effect
    each = EventsByKey(steps.permutation, np.arange(places + 1, dtype=np.int32), begins)
    g, action = of.status.size, of.taken.action[0]
    known = (of.status == ROW if cells else of.status != NONE) & (not of.over)
    start = np.where(known, n + np.arange(g), NOTHING) if kept else np.full(begins.size - 1, NOTHING)
    follows = np.where(action != SKIP, TAKE, SKIP).astype(np.uint8)
    if cells:  # the row's order is that of a live event; a delete clears it
        gone = of.gone.take(steps.permutation) != 0
        follows = np.where(gone, np.where(action == CLEAR, CLEAR, SKIP), follows).astype(np.uint8)
    none, out = np.empty(0, np.int64), np.empty(places, np.int64)
    choose_cells(each, follows, unpack_validity(column), none, start, np.ones(start.size, np.uint8), none, LATEST, out)
    before = np.concatenate([np.full(1, NOTHING), out[:-1]])
    before[begins[:-1]] = start
    own = steps.permutation.astype(np.int64)
    found: Ints = np.full(n, NOTHING)
    found[steps.permutation] = np.where(unpack_validity(column).take(own) != 0, own, before)
    values = of.order.build_order_column(field.name, of.prior.order) if kept else None
    if values is None:
        hidden = of.gather_hidden_columns()
        (values,) = [pa.nulls(g, field.type)] if hidden is None else column_arrays(hidden, [f"_order_{field.name}"])
    return pa.concat_arrays([column, values.cast(field.type)]).take(pa.array(found, mask=found == NOTHING))


def build_first_order_column(of: WalkedEvents, field: pa.Field) -> pa.Array:
    """Return an order column for rows whose first event counts.

    The order is that of the first event, or the inherited order. O(events).
    """
    made = of.fold_column(MergedColumn(field.name, first(), field, 0))
    assert isinstance(made, np.ndarray)
    at = made[of.places]
    ours = (at >= 0) & (at < 1 << SLOT)
    mine = fill_orders_from_prior(of, field).take(pa.array(np.where(ours, at, 0)))
    return pc.if_else(pa.array(ours), mine, of.gather_cells(at, field))


def _fold_by_function(of: WalkedEvents) -> dict[str, Ints | pa.Array]:
    """Merge with a compiled loop over the function.

    Columns that records cannot hold are folded by ``dd.last_non_null()``.
    """
    bound, function, steps = of.upsert.bound, of.merging.function, of.steps
    derived = {field.name for field, _ in of.merging.derived}
    asked = f"the merger {find_function_name(function)} of {bound.name!r}"
    schema = pa.schema(
        [field for field in bound.unstamped_row_schema if field.name not in derived and is_record_type(field.type)]
    )
    kind, fixed = build_record_type(schema, asked), _list_fixed_columns(of)
    live = (of.cells != NOTHING).view(np.uint8).copy()
    held = convert_to_records(_gather_held_rows(of, schema, np.arange(live.size)), kind)
    given, made = convert_to_records(_build_event_rows(of, schema), kind), np.zeros(of.places.size, kind)
    required = [field.name for field in schema if not field.nullable]
    try:
        code, row = build_merge_loop(function, kind)(
            *steps,
            of.action[0],
            to_record_array(held),
            live,
            to_record_array(given),
            to_record_array(made),
            describe_fields(kind, fixed, required),
            to_record_array(np.zeros(3, kind)),
        )
    except Exception as error:
        found = f"it raised {type(error).__name__}: {str(error)[:500]}"
        raise MergerFailed(asked, found, "fix the function; nothing was changed") from error
    if code != FINE:
        key = row_values(of.events.rows.select(list(bound.spec.key)), int(row))
        found, remedy = {
            CHANGED: (f"it changed one of {fixed}", "do not change key and order columns"),
            NULL: (f"it left null in one of {required}", "set these columns, and their null flags to False"),
        }[code]
        raise MergerFailed(asked, f"for the key {key} {found}", f"{remedy}; nothing was changed")
    for name in schema.names:
        made[name + NULL_FLAG] |= of.taken.live == 0
    out: dict[str, Ints | pa.Array] = {}
    for each in of.merging.columns:
        if each.name in schema.names:
            out[each.name] = build_column_from_records(made, each.field)
        else:
            rows, cells = of.events.rows, of.build_prior_cells(each)
            out[each.name] = fold_cells(
                last_non_null(),
                each.field,
                of.steps,
                of.action[0],
                rows.column(each.name),
                np.empty(0, np.uint8),
                PriorCells(cells.references, cells.gather_values),
                of.upsert.secret,
                of.format_key,
            )
    return out


def run_state_machine(of: WalkedEvents) -> dict[str, pa.Array]:
    """Run the machine and return its column by key and time.

    Set ``of.taken.live``, which says whether each key has a value. O(events), plus the cost of the function. Raises
    `IllegalTransition`, `MergerFailed`, `ListTooLong`.

    >>> from ddflow.plan.merge.machine import Machine
    >>> from ddflow.plan.inputs.input import bind_machine
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.upsert import RunningUpsert
    >>> from ddflow.plan.inputs.spec import Upsert as Spec
    >>> schema = pa.schema({"k": pa.int64(), "symbol": pa.string()})
    >>> ring = Machine("at", {(0, "up"): 1, (1, "up"): 0}, on="symbol", start=0)
    >>> upsert = RunningUpsert(bind_machine("rings", schema, Spec("k"), ring), Secret(1, 2))
    >>> events = pa.record_batch({"k": [1, 1, 1], "symbol": ["up", "up", "up"]}, schema)
    >>> resolved = upsert.resolve(Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2)), ints(0), since=0)
    >>> resolved.updates(upsert.bound.row_schema).to_table(upsert.bound.row_schema, None).to_pylist()
    [{'k': 1, 'at': 1, '_diff': 1}]
    """
    machined = of.merging.machine
    assert machined is not None
    field, action = machined.value_column, of.taken.action[0]
    rows = of.events.rows.select(machined.schema.names)
    held = of.gather_cells(of.cells, field)

    def key(row: int) -> str:
        return str(row_values(rows.select(list(of.upsert.bound.spec.key)), row))

    if machined.automaton is not None:
        assert machined.machine.on is not None, "a table is asked by a column"
        symbols = rows.column(machined.machine.on)
        made, there, row, state = machined.automaton.compute_cells(of.steps, action, symbols, held)
        if row >= 0:
            raise IllegalTransition(
                machined.asked,
                f"the key {key(row)} is in {machined.automaton.states[state].as_py()!r}, from which "
                f"{row_values(rows.select([machined.machine.on]), row)} has no transition",
                "add the transition, or use otherwise='stay' or 'drop'; nothing was changed",
            )
    else:
        secret = of.upsert.secret
        if machined.machine.scalar:
            records = convert_to_records(rows, build_record_type(machined.schema, machined.asked))
            made = machined.run_scalar_function(of.steps, action, records, held, secret, key)
        else:
            chains = EventChains(of.steps, action)
            made = machined.run_batch_function(chains, pick_rows(rows, chains.rows), held, secret, key)
        there = np.asarray(made.is_valid())
    of.taken.live[:] = there
    return {field.name: made}

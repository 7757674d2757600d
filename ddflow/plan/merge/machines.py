"""Bind a state machine to the columns of its events, compile its table, and call its function.

Guarantees: a transition table is compiled to arrays of integers, once for each input. An error message contains the
state or symbol that is missing in the table. For each key, a transition function gets one event at a time, in order.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> door = dd.Machine("door", {("locked", "coin"): "open", ("open", "push"): "locked"}, on="symbol", start="locked")
>>> doors = flow.machine("events", {"id": pa.int64(), "symbol": pa.string()}, dd.Upsert("id"), door)
>>> _ = flow.output("doors", doors)
>>> with flow.open() as engine:
...     engine.step({"events": pa.table({"id": [7, 7, 7], "symbol": ["coin", "push", "coin"]})}, 1)["doors"].to_pylist()
[{'id': 7, 'door': 'open', '_time': 1, '_diff': 1}]
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, Secret, compute_value_hashes, unpack_validity
from ddflow.columns.layout import make_writable
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.rows import row_values
from ddflow.errors import CorruptState, ErrorText, IllegalTransition, ListTooLong, Option, SpecError
from ddflow.kernels.automaton import (
    NOTHING,
    REFUSED,
    pack_state_sets,
    run_single_state,
    run_state_sets,
    unpack_state_sets,
)
from ddflow.kernels.fold import EventsByKey
from ddflow.kernels.user_functions import FINE, NULL, TOO_MANY, build_state_machine_loop, to_record_array
from ddflow.plan.merge.machine import Machine, _sort_values
from ddflow.plan.merge.user_function import (
    EventChains,
    Records,
    build_column_from_records,
    build_merger_error,
    build_record_type,
    call_batch_function,
    check_scalar_function,
    concatenate_rows,
    convert_to_numbers,
    convert_to_records,
    describe_fields,
    find_function_name,
    is_record_type,
    pick_rows,
)

Codes = np.ndarray[Any, np.dtype[np.int32]]
SMALL = 1 << 16
"""The maximum difference between integers that a lookup table encodes."""


class ValueEncoder:
    """An encoder that replaces each of the distinct, non-null ``values`` by its position.

    A value that is not in ``values`` gets the code ``len(values)``.
    """

    def __init__(self, values: pa.Array) -> None:
        self.values, self.least, self.places = values, 0, np.empty(0, np.int32)
        if pat.is_integer(values.type) and not pat.is_uint64(values.type) and len(values):
            given = convert_to_numbers(values).astype(np.int64)
            self.least, size = int(given.min()), int(given.max()) - int(given.min()) + 1
            if size <= SMALL:
                self.places = np.full(size + 1, len(values), np.int32)
                self.places[given - self.least] = np.arange(len(values), dtype=np.int32)

    def encode(self, column: pa.Array) -> Codes:
        """Encode values of the same type. Returns int32[n]. O(n)."""
        if not self.places.size:
            return make_writable(np.asarray(pc.fill_null(pc.index_in(column, self.values), len(self.values)), np.int32))
        at = (convert_to_numbers(column).astype(np.int64) - self.least).view(np.uint64)
        out = self.places.take(np.minimum(at, np.uint64(self.places.size - 1)).view(np.int64))
        present = unpack_validity(column)
        return np.where(present != 0, out, np.int32(len(self.values))) if present.size else out


def _build_array(given: list[Any], kind: pa.DataType, what: str) -> pa.Array:
    try:
        return pa.array(given, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
        raise SpecError(
            what, f"{given} are not values of {kind} ({error})", "use values of the column's type"
        ) from None


class Automaton:
    """The compiled table of ``machine``. ``kind``: the type of symbols.

    ``states``: the sorted states; a state's number is its position. Raises `SpecError` for values of another type.

    >>> from ddflow.plan.merge.machine import Machine
    >>> door = Machine("door", {("locked", "coin"): "open", ("open", "push"): "locked"}, on="symbol", start="locked")
    >>> automaton = Automaton(door, pa.string())
    >>> automaton.states.to_pylist(), automaton.symbols.encode(pa.array(["push", None, "coin"])).tolist()
    (['locked', 'open'], [1, 2, 0])
    """

    def __init__(self, machine: Machine, kind: pa.DataType) -> None:
        listed = machine.all_states
        symbols = sorted({symbol for _, symbol, _ in machine.rows}, key=lambda each: (type(each).__name__, each))
        self.several, self.field = machine.several, machine.schema.field(0)
        self.states = _build_array(listed, self.field.type, "the states of a machine")
        self.symbols = ValueEncoder(_build_array(list(symbols), kind, f"on={machine.on!r} of a machine"))
        self._state_encoder, s, c = ValueEncoder(self.states), len(listed), len(symbols)
        start, stays = [listed.index(each) for each in _sort_values(machine.start)], machine.otherwise == "stay"
        there = {
            (listed.index(state), symbols.index(symbol)): [listed.index(each) for each in to]
            for state, symbol, to in machine.rows
        }
        self.refused = np.zeros(c + 1, np.uint64)
        self.table: Any = np.zeros((s, c + 1), np.uint64 if self.several else np.int32)
        for state in range(s):
            for symbol in range(c + 1):
                to = there.get((state, symbol), [state] if stays else [])
                self.table[state, symbol] = sum(1 << each for each in to) if self.several else (*to, NOTHING)[0]
                if (state, symbol) not in there and machine.otherwise == "error":
                    self.refused[symbol] |= np.uint64(1 << state) if self.several else np.uint64(0)
                    self.table[state, symbol] = 0 if self.several else REFUSED
        self.start = sum(1 << each for each in start) if self.several else start[0]

    def compute_cells(
        self, walked: EventsByKey, action: Any, symbols: pa.Array, held: pa.Array
    ) -> tuple[pa.Array, Any, int, int]:
        """Compute the cell of each (key, time).

        Returns m cells, a bool[m] that marks the cells with a value, and a refusal. The refusal is the number of the
        refused row and the number of its state. If no row is refused, both numbers are -1.
        ``held``: the g stored cells. A key without a value has a null cell. O(p + m). Raises `CorruptState`.
        """
        codes, m = self.symbols.encode(symbols), walked.key_times.size - 1
        if not self.several:
            before = self._encode_states(held)
            out = np.full(m, NOTHING, np.int32)
            row, state = run_single_state(walked, action, codes, self.table, before, self.start, out)
            there = out != NOTHING
            cells = self.states.take(pa.array(out, mask=None if there.all() else ~there))
            return cells, there, row, state
        words, masks = np.zeros(len(held), np.uint64), np.zeros(m, np.uint64)
        ends = np.concatenate([[0], np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(held), 0)))])
        pack_state_sets(ends.astype(np.int64), self._encode_states(held.flatten().field(0)), words)
        row, state = run_state_sets(
            walked, action, codes, self.table, self.refused, words, np.uint64(self.start), masks
        )
        counts, spelled = np.empty(m, np.int64), np.empty(int(np.bitwise_count(masks).sum()) if m else 0, np.int32)
        unpack_state_sets(masks, counts, spelled)
        return build_list_column(counts, [self.states.take(pa.array(spelled))], [self.field]), counts != 0, row, state

    def _encode_states(self, held: pa.Array) -> Codes:
        """Replace each stored state by its number. Null becomes NOTHING."""
        out = self._state_encoder.encode(held)
        strange = out == len(self.states)
        if strange.any():
            if int(strange.sum()) != held.null_count:
                raise CorruptState("a machine", "a key holds a state that is not in the table", "restore the state")
            out = np.where(strange, np.int32(NOTHING), out)
        return out


def build_list_column(counts: Any, columns: list[pa.Array], fields: list[pa.Field]) -> pa.Array:
    """Build lists of structs from columns. ``counts`` gives the lengths of the lists, and an empty list becomes null.

    O(values).
    """
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = pa.StructArray.from_arrays(columns, fields=fields)
    none = counts == 0
    return pa.ListArray.from_arrays(
        pa.array(ends), values, type=pa.list_(pa.struct(fields)), mask=pa.array(none) if none.any() else None
    )


VALUES = "_values"
"""The name of the column that holds a key's values, if a key can hold several values."""
EVENT = "_event"
USED = ("key", "order_by", "tie", "seq", "time", "late", "lateness", "delete", "stale", "null_key")


class BoundMachine:
    """The ``machine`` of input ``name``, bound to columns. ``schema``: the events' columns.

    ``told``: the columns with data.
    """

    def __init__(self, machine: Machine, name: str, schema: pa.Schema, told: list[str]) -> None:
        self.machine, self.name, self.schema, self.told = machine, name, schema, told
        self.asked = f"the machine of {name!r}"
        self.ran = f"the transition {find_function_name(machine.transition)} of {name!r}"
        self.state = machine.schema
        self.automaton = Automaton(machine, schema.field(machine.on).type) if machine.on is not None else None
        self.start = self._build_start_values()
        if machine.scalar:
            self.kind = build_record_type(self.state, self.asked)
            for field in self.state:
                if not is_record_type(field.type):
                    raise SpecError(
                        self.asked,
                        f"the state column {field.name!r} is {field.type}, which scalar=True does not support",
                        "use numbers, booleans and times, or a function of batches",
                        column=field.name,
                    )
            values, event = np.zeros(1, self.kind), np.zeros(1, build_record_type(schema, self.asked))[0]
            function: Any = machine.transition
            check_scalar_function(function, self.asked, {"values": values, "event": event, "out": values})

    def _build_start_values(self) -> pa.RecordBatch:
        given = [dict(each) for each in self.machine.start] if self.automaton is None else []
        try:
            columns = [pa.array([each[field.name] for each in given], field.type) for field in self.state]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
            raise SpecError(
                self.asked, f"start= has values of other types ({error})", f"use values of the types {self.state}"
            ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.state)

    @property
    def value_column(self) -> pa.Field:
        """The column in which a row holds its values.

        If a key holds at most one value, the result is the state column itself.
        """
        if not self.machine.several:
            return self.state.field(0)
        return pa.field(VALUES, pa.list_(pa.struct(list(self.state))))

    def run_batch_function(
        self, chains: EventChains, events: pa.RecordBatch, held: pa.Array, secret: Secret, key: Callable[[int], str]
    ) -> pa.Array:
        """Compute the values after each (key, time) with a function of batches.

        ``events``: the events of all rounds.  ``held``: a list of stored values for each key.  ``key``: returns an
        event's key as text. O(values) plus the cost of the function. The number of calls of the function is the number
        of events in the longest chain. Raises `MergerFailed`, `ListTooLong`, `IllegalTransition`.
        """
        first = held.take(pa.array(chains.keys))
        counts: Ints = np.asarray(pc.fill_null(pc.list_value_length(first), 0)).astype(np.int64)
        values = pa.RecordBatch.from_struct_array(first.flatten())
        sizes, made = [np.empty(0, np.int64)], []
        for number in range(len(chains)):
            begin, end = int(chains.offsets[number]), int(chains.offsets[number + 1])
            n, takes, ends = end - begin, chains.takes[begin:end], chains.ends[begin:end]
            counts = counts[:n]
            owner = np.repeat(np.arange(n), counts)
            given, of = self._collect_function_input(takes, counts, owner, values.slice(0, owner.size))
            at = np.flatnonzero(takes)
            counts = np.zeros(n, np.int64)
            if at.size:
                values, of = self._call_function(given, of, pick_rows(events.slice(begin, n), at), secret)
                counts[at] = np.bincount(of, minlength=at.size)
                if (over := np.flatnonzero(counts > self.machine.limit)).size:
                    self._raise_too_many_values(key(int(chains.rows[begin + over[0]])), int(counts[over[0]]))
            else:
                values = values.slice(0, 0)
            sizes.append(counts[ends])
            shown = np.repeat(ends, counts)
            made.append(values if shown.all() else pick_rows(values, np.flatnonzero(shown)))
        new = build_list_column(np.concatenate(sizes), concatenate_rows(made, self.state).columns, list(self.state))
        return pa.concat_arrays([new, held]).take(pa.array(chains.shown))

    def _collect_function_input(
        self, takes: Any, counts: Ints, owner: Ints, values: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Ints]:
        """Collect the values that one call of the function gets, and the event of each value."""
        fresh = np.flatnonzero(takes & (counts == 0))
        new = np.repeat(fresh, self.start.num_rows)
        here = takes[owner]
        both = np.concatenate([owner[here], new])
        index = np.concatenate([np.flatnonzero(here), owner.size + np.tile(np.arange(self.start.num_rows), fresh.size)])
        order = np.argsort(both, kind="stable")
        every = concatenate_rows([values.cast(self.state), self.start], self.state)
        return pick_rows(every, index[order]), (np.cumsum(takes) - 1)[both[order]]

    def _call_function(
        self, given: pa.RecordBatch, of: Ints, events: pa.RecordBatch, secret: Secret
    ) -> tuple[pa.RecordBatch, Ints]:
        """Call the function. Return the distinct values, sorted by event and value, and the event of each value."""
        full = pa.schema([*self.state, pa.field(EVENT, pa.int64(), nullable=False)])
        values = pa.RecordBatch.from_arrays([*given.columns, pa.array(of, pa.int64())], schema=full)
        batch = call_batch_function(self.machine.transition, (values, events), full, self.ran)
        event: Ints = np.asarray(batch.column(EVENT))
        if event.size and (event.min() < 0 or event.max() >= events.num_rows):
            raise build_merger_error(
                self.ran,
                f"it returned a value of event {event.max()} or {event.min()}, but there are {events.num_rows} events",
                "return _event unchanged",
            )
        out, event = self.sort_distinct_values(batch.select(self.state.names), event, secret)
        if self.machine.states is not None:
            known = pa.array(list(self.machine.states), self.state.field(0).type)
            wrong = np.flatnonzero(~np.asarray(pc.is_in(out.column(0), known)))
            if wrong.size:
                row = row_values(pick_rows(events, event[wrong[:1]]), 0)
                state = out.column(0)[int(wrong[0])].as_py()
                raise IllegalTransition(
                    self.asked,
                    f"{row} leads to {state!r}, which is not in states=",
                    "fix the function, or add the state; nothing was changed",
                )
        return out, event

    @staticmethod
    def sort_distinct_values(values: pa.RecordBatch, owner: Ints, secret: Secret) -> tuple[pa.RecordBatch, Ints]:
        """Sort the values of each owner and drop duplicates. O(values), plus a sort if an owner has several values."""
        if (owner[1:] > owner[:-1]).all():
            return values, owner
        ranks = dense_ranks(values, compute_value_hashes(values, secret))
        order = np.lexsort((ranks, owner))
        by, at = owner[order], ranks[order]
        fresh = np.ones(order.size, np.bool_)
        fresh[1:] = (by[1:] != by[:-1]) | (at[1:] != at[:-1])
        return pick_rows(values, order[fresh]), by[fresh]

    def run_scalar_function(
        self,
        walked: EventsByKey,
        action: Any,
        events: Records,
        held: pa.Array,
        secret: Secret,
        key: Callable[[int], str],
    ) -> pa.Array:
        """Compute the values after each (key, time) with a compiled function.

        O(events * cost of the function).  Raises the errors of `run_batch_function`.
        """
        m, limit = walked.key_times.size - 1, self.machine.limit
        counts = np.asarray(pc.fill_null(pc.list_value_length(held), 0)).astype(np.int64)
        values = convert_to_records(pa.RecordBatch.from_struct_array(held.flatten()).cast(self.state), self.kind)
        offsets, ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.zeros(m + 1, np.int64)
        most = int(np.diff(walked.keys).max()) if m else 0
        out = np.zeros(max(2 * (m + values.size), most * limit), self.kind)
        loop, begin = build_state_machine_loop(self.machine.transition, self.kind, events.dtype), 0
        while True:
            try:
                begin, code, row = loop(
                    begin,
                    *walked,
                    action,
                    to_record_array(values),
                    offsets,
                    to_record_array(convert_to_records(self.start, self.kind)),
                    to_record_array(events),
                    describe_fields(self.kind, [], []),
                    to_record_array(np.zeros(2 * limit, self.kind)),
                    to_record_array(out),
                    ends,
                )
            except Exception as error:
                found = f"it raised {type(error).__name__}: {str(error)[:500]}"
                raise build_merger_error(
                    self.ran, found, "fix it; f(values, event, out) returns the number of values that it wrote"
                ) from error
            if code == TOO_MANY:
                self._raise_too_many_values(key(int(row)), limit + 1)
            if code not in (FINE, NULL):
                found = f"for the key {key(int(row))} it returned a negative number of values"
                raise build_merger_error(self.ran, found, "return the number of values that it wrote")
            if begin == walked.keys.size - 1:
                break
            out = np.concatenate([out, np.zeros(out.size + most * limit, self.kind)])
        owner = np.repeat(np.arange(m), np.diff(ends))
        made = pa.RecordBatch.from_arrays(
            [build_column_from_records(out[: owner.size], field) for field in self.state], schema=self.state
        )
        made, owner = self.sort_distinct_values(made, owner, secret)
        return build_list_column(np.bincount(owner, minlength=m), made.columns, list(self.state))

    def _raise_too_many_values(self, key: str, found: int) -> NoReturn:
        raise ListTooLong(
            self.asked,
            ErrorText(f"the key {key} would hold {found} values, but ", Option("limit"), f" is {self.machine.limit}"),
            "raise the limit, or return fewer values; nothing was changed",
        )

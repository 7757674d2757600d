"""Call user functions in merges and machines, and describe them by name and code digest.

ddflow calls a function of batches in rounds. In a round, the function gets the next event of each key that still has
events. Keys are sorted by their number of events, so the keys of a round are a prefix of the previous round's keys. The
number of calls is the number of events of the key with the most events. A function of scalars is compiled, and gets
records. A record has a field for each column of a word type and a boolean field ``<column>_null``; the value of a null
is 0. JSON contains no code. So a plan that is read from JSON has an `AbsentFunction`, which has a name and a digest.

Guarantees: the result is the same as if ddflow called the function key by key and event by event. If a function fails,
ddflow refuses the step before any state changes.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import (
    Flags,
    Ints,
    Narrow,
    Secret,
    compute_value_hashes,
    unpack_booleans,
    unpack_validity,
    view_values,
)
from ddflow.columns.rows import row_values
from ddflow.columns.schema import column_arrays, conform_to_schema, is_word_type, to_batch
from ddflow.errors import MergerFailed, SchemaMismatch, SpecError
from ddflow.kernels.fold import SKIP, TAKE, EventsByKey
from ddflow.plan.text.formulas import digest_code, find_code_name


class EventChains:
    """For each key, the chain of events to fold. The events are arranged in rounds. O(p + g log g).

    ``walked``: m (key, time) groups of g keys.  ``action``: uint8[p], by place: SKIP, TAKE or CLEAR.

    ``keys``: int64[g], longest chains first. ``offsets``: int64[rounds + 1], the start of each round. Three arrays have
    one item for each event that is not skipped, sorted by round:
    ``rows``: int64, the number of the event.
    ``takes``: true for TAKE, false for CLEAR.
    ``ends``: true for the last event of a (key, time).
    ``shown``: int64[m]. For each (key, time), the number of the event whose row is shown, counted from 0 among the
    events with ``ends`` true. If the key has no event to show so far, the item is the count of all events with ``ends``
    true, plus the number of the key.

    >>> few = lambda *values: np.array(values, np.int32)
    >>> walked = EventsByKey(few(0, 1, 2), few(0, 1, 2, 3), few(0, 1, 3))  # one event of a key, two of another
    >>> chains = EventChains(walked, np.array([TAKE, TAKE, TAKE], np.uint8))
    >>> chains.keys.tolist(), chains.offsets.tolist(), chains.rows.tolist(), chains.shown.tolist()
    ([1, 0], [0, 2, 3], [1, 0, 2], [1, 0, 2])
    """

    def __init__(self, walked: EventsByKey, action: Flags) -> None:
        permutation, key_times, begins = walked
        acting, g, m = np.flatnonzero(action != SKIP), begins.size - 1, key_times.size - 1
        cuts = np.searchsorted(acting, key_times[begins])
        counts = np.diff(cuts)
        self.keys: Ints = np.argsort(-counts, kind="stable")
        rank: Ints = np.empty(g, np.int64)
        rank[self.keys] = np.arange(g)
        key = np.repeat(np.arange(g), counts)
        link = np.arange(acting.size) - np.repeat(cuts[:-1], counts)
        self.offsets: Ints = np.concatenate([[0], np.cumsum(np.bincount(link))]).astype(np.int64)
        position = self.offsets[link] + rank[key]
        place: Ints = np.empty(acting.size, np.int64)
        place[position] = acting
        self.places = place
        self.rows: Ints = permutation[place].astype(np.int64)
        self.takes = action[place] == TAKE
        of = np.searchsorted(key_times, acting, "right") - 1
        last = np.append(of[1:] != of[:-1], np.ones(min(of.size, 1), np.bool_))
        self.ends = np.zeros(acting.size, np.bool_)
        self.ends[position[last]] = True
        self.shown = self._number_chain_ends(m, of[last], (np.cumsum(self.ends) - 1)[position[last]], begins)

    @staticmethod
    def _number_chain_ends(m: int, ended: Ints, number: Ints, begins: Narrow) -> Ints:
        made, since = np.full(m, -1, np.int64), np.full(m, -1, np.int64)
        made[ended], since[ended] = number, ended
        since = np.maximum.accumulate(since) if m else since
        key = np.repeat(np.arange(begins.size - 1), np.diff(begins))
        return np.where(since >= begins[key], made[since], ended.size + key)

    def __len__(self) -> int:
        return self.offsets.size - 1


def find_function_name(function: Any) -> str:
    """Return the name of a function for messages."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def pick_rows(batch: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
    """Return a batch that has only the selected rows of the given batch. O(places) a column."""
    return batch.take(pa.array(places))


def concatenate_rows(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate the rows of all parts into one batch.  O(rows) a column."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    columns = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def call_batch_function(
    function: Any, given: Sequence[pa.RecordBatch], schema: pa.Schema, asked: str
) -> pa.RecordBatch:
    """Call a function of record batches and convert its result to ``schema``.  Raises `MergerFailed`."""
    try:
        made = function(*given)
    except Exception as error:
        raise build_merger_error(asked, f"it raised {type(error).__name__}: {error}", "fix the function") from error
    if not isinstance(made, pa.RecordBatch):
        raise build_merger_error(
            asked, f"it returned a {type(made).__name__}", f"return a record batch of {schema.names}"
        )
    if sorted(made.schema.names) != sorted(schema.names):
        raise build_merger_error(asked, f"it returned the columns {made.schema.names}", f"return {schema.names}")
    try:
        return to_batch(conform_to_schema(pa.Table.from_batches([made]), schema, "what it returned"))
    except SchemaMismatch as error:
        remedy = f"return columns of these types, and nulls only in nullable columns: {schema.to_string()}"
        raise build_merger_error(asked, f"{error.asked}: {error.found}", remedy) from error


def build_merger_error(asked: str, found: str, remedy: str) -> MergerFailed:
    """Build the error for a failed user function."""
    return MergerFailed(asked, found, f"{remedy}; nothing was changed")


class Merger:
    """A caller of a user's ``function``. The function merges stored rows and new rows.

    ``input``: the input's name, for messages.  ``schema``: the row's columns.  ``fixed``: the columns that the function
    may not change.  ``secret``: the secret for hashes.

    >>> import pyarrow.compute as pc
    >>> from ddflow.kernels.fold import TAKE, EventsByKey
    >>> few = lambda *values: np.array(values, np.int32)
    >>> chains = EventChains(EventsByKey(few(0, 1), few(0, 2), few(0, 1)), np.array([TAKE, TAKE], np.uint8))
    >>> given = pa.record_batch({"k": [1, 1], "n": [2, 3]})
    >>> def add(held, given):
    ...     return given.set_column(1, "n", pc.add(held["n"], given["n"]))
    >>> merger, held = Merger(add, "visits", given.schema, ["k"], Secret(1, 2)), given.slice(0, 0)
    >>> merger.fold_event_chains(chains, given, held, np.zeros(1, bool))
    ... # doctest: +ELLIPSIS
    pyarrow.RecordBatch...
    k: [1]
    n: [5]
    """

    def __init__(
        self, function: Callable[..., Any], input: str, schema: pa.Schema, fixed: list[str], secret: Secret
    ) -> None:
        self.function, self.schema, self.fixed, self.secret = function, schema, fixed, secret
        self.asked = f"the merger {find_function_name(function)} of {input!r}"
        # During a fold, a key without a stored row has a row of nulls. So all fields of ``loose`` are nullable.
        self.loose = pa.schema([field.with_nullable(True) for field in schema])

    def fold_event_chains(
        self, chains: EventChains, given: pa.RecordBatch, held: pa.RecordBatch, live: Any
    ) -> pa.RecordBatch:
        """Fold the chains. Return the last row of each (key, time), in the order of ``chains.ends``.

        ``given``: the events of all rounds.  ``held``: the stored row of each key with an event, in the order of
        ``chains.keys``.  ``live``: whether the key has a stored row; if not, its row in ``held`` is arbitrary.  Raises
        `MergerFailed`.  O(rows) plus the cost of the function.
        """
        made, state = [], held.cast(self.loose)
        for number in range(len(chains)):
            begin, end = int(chains.offsets[number]), int(chains.offsets[number + 1])
            n, takes, ends = end - begin, chains.takes[begin:end], chains.ends[begin:end]
            events, both = given.slice(begin, n), takes & live[:n]
            if both.all():
                state = self._call_function(state.slice(0, n), events)
            elif both.any():
                at = np.flatnonzero(both)
                merged = self._call_function(pick_rows(state, at), pick_rows(events, at))
                index = np.where(both, n + np.cumsum(both) - 1, np.arange(n))
                state = pick_rows(
                    concatenate_rows([events.cast(self.loose), merged.cast(self.loose)], self.loose), index
                )
            else:
                state = events
            state, live = state.cast(self.loose), takes
            made.append(state if ends.all() else pick_rows(state, np.flatnonzero(ends)))
        return concatenate_rows(made, self.loose)

    def _call_function(self, held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
        held, given = held.cast(self.schema), given.cast(self.schema)
        out = call_batch_function(self.function, (held, given), self.schema, self.asked)
        if out.num_rows != given.num_rows:
            found = f"it returned {out.num_rows} rows for {given.num_rows} keys"
            raise build_merger_error(self.asked, found, "return one row for each key, in order")
        was, now = (compute_value_hashes(batch.select(self.fixed), self.secret) for batch in (given, out))
        if (was == now).all():
            return out
        for name in self.fixed:
            was, now = (compute_value_hashes(batch.select([name]), self.secret) for batch in (given, out))
            present = unpack_validity(given.column(name))
            wrong = np.flatnonzero((was != now) & (present != 0 if present.size else True))
            if wrong.size:
                before, after = (row_values(batch.select(self.fixed), int(wrong[0])) for batch in (given, out))
                found = f"it returned {after} instead of {before}"
                raise build_merger_error(self.asked, found, "return key and order columns unchanged")
            # If an order is null in a given row, the order is null in the result, even if the function returned a
            # value.
            out = out.set_column(self.schema.get_field_index(name), self.schema.field(name), given.column(name))
        return out


KEYS = ("function", "python", "digest")


@dataclass(frozen=True)
class AbsentFunction:
    """A function without its code. ``digest``: a digest of the code.

    ``python``: the Python version that made the digest.

    >>> told = describe_function(len)
    >>> told["function"], AbsentFunction.of_json(told).name
    ('builtins.len', 'builtins.len')
    >>> describe_function(AbsentFunction.of_json(told)) == told
    True
    """

    name: str
    python: str
    digest: str

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> Self:
        """Read the JSON that `describe_function` returns. Raises `SpecError` if the JSON is invalid."""
        texts = [given.get(name) for name in KEYS]
        if not all(isinstance(each, str) for each in texts):
            raise SpecError("a function from JSON", repr(dict(given)), "pass the result of to_json()")
        return cls(*map(str, texts))

    def __call__(self, *_: Any) -> NoReturn:
        raise SpecError(
            f"run {self.name}", "the plan was read from JSON, which contains no code", "pass the flow itself"
        )


def find_qualified_name(function: Any) -> str:
    """Return a function's module and qualified name."""
    if isinstance(function, AbsentFunction):
        return function.name
    return find_code_name(getattr(function, "py_func", function))


def describe_function(function: Any) -> dict[str, str]:
    """Describe a function as JSON: its name, the Python version, and the digest of its code.  O(code)."""
    if isinstance(function, AbsentFunction):
        return dict(zip(KEYS, (function.name, function.python, function.digest), strict=True))
    digest = digest_code(getattr(function, "py_func", function))
    return dict(zip(KEYS, (find_qualified_name(function), str(sys.implementation.cache_tag), digest), strict=True))


def is_same_function(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two functions can be the same.

    Two functions can be the same if their names are equal, and their digests are equal or from different Python
    versions.
    """
    told = one.get("python") != other.get("python") or one.get("digest") == other.get("digest")
    return bool(one.get("function") == other.get("function") and told)


NULL = "_null"
"""Suffix of the names of record fields that mark nulls."""
Records = np.ndarray[Any, np.dtype[Any]]


def is_record_type(kind: pa.DataType) -> bool:
    """Tell whether records can have fields of this type. The allowed types are all word types except float16."""
    return is_word_type(kind) and not pat.is_float16(kind)


def _find_field_dtype(kind: pa.DataType) -> np.dtype[Any]:
    if pat.is_boolean(kind):
        return np.dtype(np.bool_)
    letter = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def build_record_type(schema: pa.Schema, what: str) -> np.dtype[Any]:
    """Build the record type of some columns. O(columns).

    Raises `SpecError` if the name of a null flag is also the name of a column.
    """
    fields: list[tuple[str, np.dtype[Any]]] = []
    for field in schema:
        if is_record_type(field.type):
            fields += [(field.name, _find_field_dtype(field.type)), (field.name + NULL, np.dtype(np.bool_))]
    names = [name for name, _ in fields]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(
                what,
                f"the columns {name!r} and {name.removesuffix(NULL)!r} would be the same field",
                "rename one of them: _null after a column's name is the field that flags its nulls",
            )
    return np.dtype(fields)


def convert_to_numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the values of a word type as a numpy array. Times become integers. The value of a null is unspecified."""
    if pat.is_boolean(column.type):
        return unpack_booleans(column).view(np.bool_)
    return view_values(column, _find_field_dtype(column.type))


def convert_to_records(rows: pa.RecordBatch | pa.Table, kind: np.dtype[Any]) -> Records:
    """Convert rows to records.  O(rows) a column.

    >>> schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("s"), "name": pa.string()})
    >>> rows = pa.record_batch({"id": [7, None], "at": [1, 2], "name": ["a", "b"]}).cast(schema)
    >>> made = convert_to_records(rows, build_record_type(schema, "here"))
    >>> made.dtype.names, made["id_null"].tolist()
    (('id', 'id_null', 'at', 'at_null'), [False, True])
    >>> build_column_from_records(made, schema.field("id")).to_pylist()
    [7, None]
    """
    out = np.zeros(rows.num_rows, kind)
    for name in (kind.names or ())[::2]:
        (column,) = column_arrays(rows, [name])
        out[name] = convert_to_numbers(column)
        present = unpack_validity(column)
        if present.size:
            out[name + NULL] = present == 0
            out[name][present == 0] = 0
    return out


def build_column_from_records(made: Records, field: pa.Field) -> pa.Array:
    """Convert one column of records to Arrow.  O(records)."""
    values, null = np.ascontiguousarray(made[field.name]), made[field.name + NULL]
    out = pa.array(values, mask=null if null.any() else None)
    return out if out.type == field.type else out.view(field.type)


def describe_fields(kind: np.dtype[Any], fixed: list[str], required: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Describe the fields of records for `kernels.user_functions`.

    ``fixed``: fields that may not change.  ``required``: fields that may not be null.
    """
    out = []
    for name in (kind.names or ())[::2]:
        where: Any = kind.fields
        at = {each: where[each] for each in (name, name + NULL)}
        size = at[name][0].itemsize
        rules = name in fixed, name in required, size if at[name][0].kind == "f" else 0
        out.append((at[name][1], size, at[name + NULL][1], *rules))
    return np.array(out, np.int64).reshape(-1, 6)


def check_scalar_function(function: Callable[..., Any], asked: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a scalar function if numba cannot compile it, or if it names a missing field.

    ``arguments``: sample arguments by name, as the compiled loops pass them. Raises `SpecError`. The check compiles
    ``function``, so the check costs as much as one compilation.
    """
    from ddflow.kernels.user_functions import find_compile_error

    error = None if isinstance(function, AbsentFunction) else find_compile_error(function, *arguments.values())
    if error is None:
        return
    found = f"{find_function_name(function)} does not compile: {' '.join(str(error).split())[:500]}"
    if isinstance(error, KeyError):
        found = f"{find_function_name(function)} names the field {error.args[0]!r}, which does not exist"
    fields = "; ".join(f"{name} has {list(each.dtype.names)}" for name, each in arguments.items())
    raise SpecError(asked, found, f"fix f({', '.join(arguments)}), where {fields}") from None

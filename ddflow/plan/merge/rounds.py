"""Rounds: a merger of one's own, called with whole columns: the next event of every key together.

Invariant: what comes out is what calling it key by key, event by event, would give; a key that holds nothing takes its
event as it is, and no call is made for it. A function of somebody else's may give other columns, another number of
rows, another key, a null where none may be, or raise; each of these refuses the step, with words that say which, before
anything has changed. As many calls as the longest chain, so a hot key costs calls.

>>> import pyarrow.compute as pc
>>> from ddflow.kernels.fold import TAKE, Walked
>>> few = lambda *values: np.array(values, np.int32)
>>> chains = Chains(Walked(few(0, 1), few(0, 2), few(0, 1)), np.array([TAKE, TAKE], np.uint8))
>>> given = pa.record_batch({"k": [1, 1], "n": [2, 3]})
>>> def add(held, given):
...     return given.set_column(1, "n", pc.add(held["n"], given["n"]))
>>> Merger(add, "visits", given.schema, ["k"], Secret(1, 2)).run(chains, given, given.slice(0, 0), np.zeros(1, bool))
... # doctest: +ELLIPSIS
pyarrow.RecordBatch...
k: [1]
n: [5]
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Secret, validity, value_hashes
from ddflow.columns.rows import shown_row
from ddflow.columns.schema import conform, one_batch
from ddflow.errors import MergerFailed, SchemaMismatch
from ddflow.plan.merge.chains import Chains


def named(function: Any) -> str:
    """Return a function's name, for messages."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def picked(batch: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
    """Take some rows of a batch.  O(places) a column."""
    return batch.take(pa.array(places))


def joined(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate the rows of all parts into one batch.  O(rows) a column."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    columns = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def called(function: Any, given: Sequence[pa.RecordBatch], schema: pa.Schema, asked: str) -> pa.RecordBatch:
    """Call a function of record batches; return its result in columns of ``schema``.  Raises `MergerFailed`."""
    try:
        made = function(*given)
    except Exception as error:
        raise failed(asked, f"it raised {type(error).__name__}: {error}", "mend it") from error
    if not isinstance(made, pa.RecordBatch):
        raise failed(asked, f"it returned a {type(made).__name__}", f"return a record batch of {schema.names}")
    if sorted(made.schema.names) != sorted(schema.names):
        raise failed(asked, f"it returned the columns {made.schema.names}", f"return {schema.names}")
    try:
        return one_batch(conform(pa.Table.from_batches([made]), schema, "what it returned"))
    except SchemaMismatch as error:
        remedy = f"return columns of these types, and null only where they allow it: {schema.to_string()}"
        raise failed(asked, f"{error.asked}: {error.found}", remedy) from error


def failed(asked: str, found: str, remedy: str) -> MergerFailed:
    """Build the error of a function that merges."""
    return MergerFailed(asked, found, f"{remedy}; nothing was changed")


class Merger:
    """A caller of ``function``, which merges held and given rows.  ``input``: its name, for messages.  ``schema``: of a
    row.  ``fixed``: the columns that it may not change.  ``secret``: for hashes.
    """

    def __init__(
        self, function: Callable[..., Any], input: str, schema: pa.Schema, fixed: list[str], secret: Secret
    ) -> None:
        self.function, self.schema, self.fixed, self.secret = function, schema, fixed, secret
        self.asked = f"the merger {named(function)} of {input!r}"
        # Of keys that hold nothing a row of nulls stands beside the others until it is left out.
        self.loose = pa.schema([field.with_nullable(True) for field in schema])

    def run(self, chains: Chains, given: pa.RecordBatch, held: pa.RecordBatch, live: Any) -> pa.RecordBatch:
        """Fold the chains; return the last row of each (key, time), in the order of ``chains.ends``.

        ``given``: the events of all rounds.  ``held``, ``live``: the row of each key with an event, in the order of
        ``chains.keys`` (anything if it holds none), and whether it holds one.  Raises `MergerFailed`.  O(rows) and the
        cost of the function.
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
                merged = self._call_function(picked(state, at), picked(events, at))
                index = np.where(both, n + np.cumsum(both) - 1, np.arange(n))
                state = picked(joined([events.cast(self.loose), merged.cast(self.loose)], self.loose), index)
            else:
                state = events
            state, live = state.cast(self.loose), takes
            made.append(state if ends.all() else picked(state, np.flatnonzero(ends)))
        return joined(made, self.loose)

    def _call_function(self, held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
        held, given = held.cast(self.schema), given.cast(self.schema)
        out = called(self.function, (held, given), self.schema, self.asked)
        if out.num_rows != given.num_rows:
            found = f"it returned {out.num_rows} rows for {given.num_rows}"
            raise failed(self.asked, found, "return one row for each key, in order")
        was, now = (value_hashes(batch.select(self.fixed), self.secret) for batch in (given, out))
        if (was == now).all():
            return out
        for name in self.fixed:
            was, now = (value_hashes(batch.select([name]), self.secret) for batch in (given, out))
            present = validity(given.column(name))
            wrong = np.flatnonzero((was != now) & (present != 0 if present.size else True))
            if wrong.size:
                before, after = (shown_row(batch.select(self.fixed), int(wrong[0])) for batch in (given, out))
                found = f"it returned {after} for {before}"
                raise failed(self.asked, found, "leave key and order columns as they are given")
            # An order that nobody gave stays null, whatever was made of it.
            out = out.set_column(self.schema.get_field_index(name), self.schema.field(name), given.column(name))
        return out

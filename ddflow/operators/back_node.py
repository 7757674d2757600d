"""The node of a plan that gives upserts in place of differences, for whoever keeps the last of each key.

Invariant: it is the last: an output is made of it and nothing else, for operators work on differences. As a collection
its rows are what keys show, each once; as an output its columns are those of upserts, ``_deleted`` and no ``_diff``.
Everything else of a plan has one schema for both, so whoever makes, keeps or reads an output's table asks
`ddflow.plan.flow.Collection.updates_schema`. What it computes is ``operators.back``'s.

>>> import pyarrow as pa
>>> from ddflow.plan.flow import Flow
>>> from ddflow.plan.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> cities = flow.output("cities", people.project(["city"]).to_upserts("city", on_conflict="all"))
>>> cities.schema.names, cities.updates_schema(flow.time_type).names
(['city', 'rows'], ['city', 'rows', '_time', '_deleted'])
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.schema import did_you_mean, one_chunk
from ddflow.errors import SpecError
from ddflow.operators.upserting import DELETED, ROWS, Conflicts, ToUpserts
from ddflow.plan.flow import Collection, Source


def forgetting(node: Collection) -> list[str]:
    """The sources that a collection is made of whose rows are forgotten without a retraction.  O(nodes)."""
    seen, ahead = list[Collection](), [node]
    while ahead:
        each = ahead.pop()
        if each not in seen:
            seen.append(each)
            ahead.extend(each.inputs)
    sources = [each.bound for each in seen if isinstance(each, Source)]
    return sorted(each.name for each in sources if each.spec.expiry is not None and each.spec.expiry.forgets)


class Back(Collection):
    """See `Collection.to_upserts`.  ``key``, ``on_conflict``: as of `ddflow.ToUpserts`.

    Raises `SpecError`, `SchemaMismatch`.
    """

    def __init__(self, of: Collection, key: str | Sequence[str], on_conflict: Conflicts) -> None:
        made = ToUpserts(key, on_conflict)
        for column in made.key:
            if column not in of.schema.names:
                raise SpecError(
                    f"to_upserts({list(made.key)})",
                    f"there is no column {column!r}",
                    did_you_mean(column, of.schema.names),
                )
        if lost := forgetting(of):
            raise SpecError(
                f"to_upserts({list(made.key)})",
                f"the sources {lost} forget rows without a retraction: keys would show them for ever",
                "leave on_expire='forget' out there",
            )
        made.declare(of.updates_schema(of.flow.time_type))
        self.key, self.on_conflict, self._out = made.key, on_conflict, made.out
        # What may be null in a row may be null where it shows; only of a deleted key everything may.
        shown = [made.row.field(f.name) if on_conflict != "all" else f for f in made.shown if f.name != DELETED]
        super().__init__(of.flow, pa.schema(shown), [of], True)

    def updates_schema(self, time_type: pa.DataType) -> pa.Schema:
        """The columns of its upserts, which are of the flow's type of time anyway."""
        return self._out

    def operand(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `SpecError`: no operator is applied to it."""
        raise SpecError(
            f"an operator on to_upserts({list(self.key)})",
            "operators work on differences, and these are upserts",
            "apply it before to_upserts, behind which only flow.output(...) stands",
        )

    def before(self, added: Container[str]) -> pa.Schema:
        """The columns of its upserts as they were when its rows had not some of theirs."""
        fields = [field for field in self._out if field.name not in added]
        if self.on_conflict != "all":
            return pa.schema(fields)
        kept = [each for each in self._out.field(ROWS).type.value_type if each.name not in added]
        lists = pa.list_(pa.field("item", pa.struct(kept), False))
        return pa.schema([field.with_type(lists) if field.name == ROWS else field for field in fields])

    def since(self, upserts: pa.Table) -> pa.Table:
        """Upserts of those columns with all there are now, which are null.  O(rows)."""
        columns = {name: one_chunk(upserts.column(name)) for name in upserts.column_names}
        if self.on_conflict == "all":
            lists, kind = columns[ROWS], self._out.field(ROWS).type
            sizes, items = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)), lists.flatten()
            had = dict(zip([field.name for field in items.type], items.flatten(), strict=True))
            fields = list(kind.value_type)
            values = [had[f.name] if f.name in had else pa.nulls(len(items), f.type) for f in fields]
            ends = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
            columns[ROWS] = pa.ListArray.from_arrays(
                ends, pa.StructArray.from_arrays(values, fields=fields), type=kind, mask=lists.is_null()
            )
        every = [columns[f.name] if f.name in columns else pa.nulls(upserts.num_rows, f.type) for f in self._out]
        return pa.Table.from_arrays(every, schema=self._out)

    filter = project = count = consolidate = concat = negate = to_upserts = operand

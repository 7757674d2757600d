"""The node of a plan that makes a row of every element of a column of lists.

Invariant: linear: a row of n elements is n rows, of the same multiplicity, with the element in the place of the list,
or where elements are structs their fields; a list that is empty or null is none. Equal elements of one row add up, and
an element that stays while its list changes is retracted and asserted, until somebody consolidates, as every output
does. What it computes is ``operators.linear``'s.

>>> from ddflow.plan.flow import Flow
>>> from ddflow.plan.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "tags": pa.list_(pa.string())}, Upsert(key="id"))
>>> people.unnest("tags")
Unnest(id int64, tags string)
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.schema import check_names, did_you_mean
from ddflow.errors import SpecError
from ddflow.plan.flow import Collection


class Unnest(Collection):
    """See `Collection.unnest`.  ``column``: of lists.  Raises `SpecError`."""

    def __init__(self, of: Collection, column: str) -> None:
        if column not in of.schema.names:
            raise SpecError("unnest", f"there is no column {column!r}", did_you_mean(column, of.schema.names))
        kind = of.schema.field(column).type
        if not (pat.is_list(kind) or pat.is_large_list(kind)):
            raise SpecError("unnest", f"{column!r} is {kind}", "name a column of lists")
        element = kind.value_type
        made = (
            [pa.field(column, element)]
            if not pat.is_struct(element)
            else [field.with_nullable(True) for field in element]
        )
        self.column = column
        fields = [part for field in of.schema for part in (made if field.name == column else [field])]
        check_names([field.name for field in fields], f"unnest({column!r})")
        super().__init__(of.flow, pa.schema(fields), [of], False)

"""What updates must look like to be turned into upserts, and the columns that upserts get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from ddflow.columns.names import DIFF, TIME, check_names, did_you_mean
from ddflow.columns.schema import is_flat, is_key, is_time, normal_type
from ddflow.errors import SchemaMismatch, SpecError

DELETED, ROWS = "_deleted", "rows"
Conflicts = Literal["error", "greatest", "all"]


def bound(given: pa.Schema, key: Sequence[str], on_conflict: Conflicts) -> pa.Schema:
    """What the updates of every step must look like.  Raises `SchemaMismatch`, `SpecError`."""
    asked = f"updates to turn into upserts by {list(key)}"
    for name in (*key, TIME, DIFF):
        if name not in given.names or (name in (TIME, DIFF) and name in key):
            raise SchemaMismatch(asked, f"there is no column {name!r}", did_you_mean(name, given.names))
    rows = [field for field in given if field.name not in (TIME, DIFF)]
    check_names([field.name for field in rows], asked)
    schema = pa.schema([field.with_type(normal_type(field.type)) for field in rows])
    for field in schema:
        if field.name in key and not is_key(field.type):
            raise SpecError(
                asked,
                f"{field.name!r} is {field.type}, which cannot be hashed as a key",
                "use numbers, text, binary, dates, decimals",
            )
        if field.name not in key and on_conflict == "greatest" and not is_flat(field.type):
            raise SpecError(
                f"on_conflict='greatest' of {asked}",
                f"{field.name!r} is {field.type}, which has no order",
                "leave the column out, or take on_conflict='all'",
            )
        if field.name == DELETED or (field.name in key and on_conflict == "all" and field.name == ROWS):
            raise SchemaMismatch(asked, f"{field.name!r} is a column that upserts get themselves", "rename it")
    kind = given.field(TIME).type
    if not is_time(kind):
        raise SchemaMismatch(asked, f"{TIME!r} is {kind}, which is no time", "use int64, a timestamp or a date")
    return pa.schema([*schema, pa.field(TIME, kind, False), pa.field(DIFF, pa.int64(), False)])

"""A machine joined with an input's schema and spec."""

from dataclasses import fields, replace

import pyarrow as pa

from ddflow.columns.names import check_names, did_you_mean
from ddflow.columns.schema import is_flat
from ddflow.errors import Option, Phrase, SpecError
from ddflow.plan.inputs.bind import BoundUpserts, bind_upserts, check_name_and_spec
from ddflow.plan.inputs.spec import Tombstone, Upsert
from ddflow.plan.merge.bound import ColumnGroup, Merging
from ddflow.plan.merge.machine import Machine
from ddflow.plan.merge.machines import USED, VALUES, BoundMachine


def bind_machine(name: str, schema: pa.Schema, spec: Upsert, given: Machine) -> BoundUpserts:
    """Join a machine with an input's schema and spec.  O(columns).  Raises `SpecError`, naming what does not fit."""
    what = f"the machine of {name!r}"
    if not isinstance(given, Machine):
        raise SpecError(what, f"{given!r} is no machine", "give dd.Machine(...)")
    check_name_and_spec(name, spec)
    unused = [each.name for each in fields(spec) if each.name not in USED and getattr(spec, each.name) != each.default]
    if unused:
        raise SpecError(
            what,
            f"its spec has {', '.join(f'{each}=' for each in unused)}, which are about rows",
            f"a machine makes them: leave them out; it goes by {', '.join(USED)}",
        )
    if spec.tie == "greatest":
        raise SpecError(
            what,
            Phrase(Option("tie", "greatest"), " compares rows, and its events are none"),
            "use 'last', 'first' or 'error'",
        )
    base = bind_upserts(name, schema, spec)
    if given.on is not None and given.on not in schema.names:
        raise SpecError(
            what, f"on= names {given.on!r}, and there is no such column", did_you_mean(given.on, schema.names)
        )
    if given.on is not None and not is_flat(schema.field(given.on).type):
        raise SpecError(what, f"on= names {given.on!r}, which is {schema.field(given.on).type}", "use text or numbers")
    dropped = {spec.time, spec.seq, spec.delete.column if isinstance(spec.delete, Tombstone) else None}
    told = [column for column in schema.names if column not in dropped or column in spec.key]
    machined = BoundMachine(given, name, schema, told)
    check_names([*spec.key, *given.schema.names, *([VALUES] if given.several else [])], what)
    row = pa.schema([*(base.row_schema.field(column) for column in spec.key), machined.column])
    merging = Merging(
        (ColumnGroup("", tuple(schema.field(column) for column in spec.order_by), ()),),
        (),
        (),
        None,
        False,
        (),
        False,
        machined,
    )
    return replace(base, row_schema=row, tracked=[machined.column.name], merging=merging)

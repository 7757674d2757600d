"""Define the rules by which the twin judges late events of an input with a watermark.

An event is late if its row, or the row that its key had when the step began, is below the horizon. The horizon is the
greatest value of all earlier steps, less the delay. Null is below nothing.

>>> from ddflow.plan.inputs.spec import Upsert
>>> spec = Upsert("k", watermark={"at": 5})
>>> is_late(spec, 20, 14), is_late(spec, 20, 15), is_late(spec, 20, None), is_late(spec, None, 1)
(True, False, False, False)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rules import Event, Held, Input, Refused, Row

from ddflow.plan.inputs.spec import Upsert


def is_late(spec: Upsert, greatest: Any, value: Any) -> bool:
    """Return whether a value is below the horizon."""
    if not spec.watermark or greatest is None or value is None:
        return False
    return bool(value < greatest - spec.watermark[0][1])


def value_of(input: Input, row: Mapping[str, Any], deletes: bool) -> Any:
    """Return the value that an event gives its row; None for a delete, unless the key has the column."""
    if not input.spec.watermark:
        return None
    column = input.spec.watermark[0][0]
    return row[column] if column in input.spec.key or not deletes else None


def advance(input: Input, greatest: Any, events: Sequence[Event]) -> Any:
    """Return the greatest value of all events so far and the given events."""
    rows = [(dict(zip(input.row, event.payload, strict=True)), event.deletes) for event in events]
    values = [value for row, deletes in rows if (value := value_of(input, row, deletes)) is not None]
    return max([*values, *([] if greatest is None else [greatest])], default=None)


def judge(input: Input, held: Mapping[Row, Held], greatest: Any, events: Sequence[Event]) -> None:
    """Set the verdict of events whose keys have a row below the horizon. Refuse them if the spec says so."""
    if not input.spec.watermark or input.spec.watermark[0][0] in input.spec.key:
        return
    at = input.row.index(input.spec.watermark[0][0])
    for event in events:
        row = held[event.key].row if event.key in held else None
        if row is not None and is_late(input.spec, greatest, row[at]):
            if input.spec.late == "error":
                raise Refused("LateEvent")
            event.verdict, event.winner = "late", (None,) * len(event.order)

"""Define the rules by which the twin expires keys: which keys a step forgets, and which events come too late.

The rules follow section 10 of docs/semantics.md. Each step examines every key and computes the horizon from the orders
themselves. Null is below every other value. NaN and infinities never move the horizon. `rules` and
`merging_rules` resolve events.

>>> from ddflow.plan.inputs.spec import Upsert
>>> from ddflow.plan.merge.expiry import Expiry
>>> spec = Upsert("k", "at", expiry=Expiry(ttl=30, tombstone_ttl=20))
>>> too_old(spec, 120, 85, live=True), too_old(spec, 120, 99, live=False), too_old(spec, 120, None, live=True)
(True, True, True)
>>> too_old(spec, None, 85, live=True)
False
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rules import Event, Held, Row, rank

from ddflow.plan.inputs.spec import Upsert


def order_of(held: Held) -> Any:
    """Return the order of a key's state.

    With cell versions, the result is the greater of two orders: the order of the row and the order of the latest
    delete.
    """
    marks = [getattr(held, name, None) for name in ("mark", "tombstone")]
    orders = [mark.order[0] for mark in marks if mark is not None] or [held.order[0]]
    return max(orders, key=rank)


def too_old(spec: Upsert, greatest: Any, order: Any, live: bool) -> bool:
    """Return whether an order is below a horizon.

    If ``live``, use the horizon of live keys; otherwise use the horizon of deleted keys and of events.
    """
    assert spec.expiry is not None
    both = [spec.expiry.ttl] if live else [spec.expiry.ttl, spec.expiry.tombstone_ttl]
    ttls = [ttl for ttl in both if ttl is not None]
    if greatest is None or not ttls:
        return False
    return rank(order) < rank(greatest - min(ttls))


def moved(greatest: Any, events: Sequence[Event]) -> Any:
    """Return the greatest order of all events so far and the given events. Nulls, NaN and infinities are ignored."""
    orders = [event.order[0] for event in events if event.order[0] is not None and math.isfinite(event.order[0])]
    return max([*orders, *([] if greatest is None else [greatest])], default=None)


def expire(spec: Upsert, held: dict[Row, Any], greatest: Any) -> dict[Row, Held]:
    """Remove expired keys from ``held``, and return the states of these keys."""
    out = {key: its for key, its in held.items() if too_old(spec, greatest, order_of(its), its.row is not None)}
    for key in out:
        del held[key]
    return out


def refuse(spec: Upsert, held: dict[Row, Any], greatest: Any, events: Sequence[Event]) -> None:
    """Set the verdict of events that are too late, for a key without a state."""
    assert spec.expiry is not None
    for event in events if spec.expiry.on_forgotten == "refuse" else ():
        if event.key not in held and too_old(spec, greatest, event.order[0], live=False):
            event.verdict, event.winner = "forgotten", (None,) * len(event.order)

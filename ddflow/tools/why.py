"""One key's story, of a state that nobody has open: see ``ddflow.engine.why``."""

from __future__ import annotations

from typing import Any

from ddflow.engine.snapshot import Snapshot
from ddflow.engine.story import Story
from ddflow.plan.collection import Plan
from ddflow.storage.opening import State, Trust


def why_of(
    state: State,
    input: str,
    key: Any,
    log: Any = None,
    *,
    flow: Plan | None = None,
    trust: Trust = "owner",
) -> Story:
    """As `why`, of a state that nobody has open.  O(bytes of the state).  Raises what `ddflow.read` raises too."""
    with Snapshot.open(state, flow=flow, trust=trust) as snapshot:
        return snapshot.why(input, key, log)

"""ddflow: upsert streams in, difference streams out.

The journey of one upsert, room by room:

    a table comes in         intake      checked, numbered; null keys and late events get their verdict
    it waits for its time    batcher     (hold-back mode) until the frontier passes
    it is identified         identity    its key becomes one or two uniform words; its values one hash
    it is sorted             kernels.sort        with the events of its step, by identity
    its key is looked up     arrange.index       what does the key hold, and by which order?
    a partial row is folded  operators.merged    with what its key holds: full rows come out of it
    it is judged             kernels.resolve     one verdict; at most one net change a key and time
    the rows are gathered    rows        the retraction takes the stored row, the assertion its own
    differences go on        operators   filter, project, count: on updates, not on state
    the change is kept       arrange     a batch of versions, the index pointing into it

The words: an *upsert* is (key, value or None, order, time).  An *update* is (data, time, diff).  A *collection* is the
multiset that updates up to a time define.  The *frontier* is the least time that may still come in.  docs/design.md has
the rest of them.

The floors, each importing only from those below:
    6 cli, spark_bridge   5 engine, flow   4 operators, batcher, intake   3 arrange, spec, merging
    2 kernels, rows, expressions   1 frontier   0 errors

Importing ddflow imports nothing heavy: the errors are there at once, the names below when they are first used.

>>> import ddflow as dd
>>> dd.Upsert(key="id").key
('id',)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ddflow.errors import *  # noqa: F403  (whoever catches one by name must not meet an AttributeError instead)
from ddflow.errors import DdflowError
from ddflow.version import __version__

if TYPE_CHECKING:
    from ddflow.custody.collect import gc
    from ddflow.custody.migrate import migrate
    from ddflow.custody.rollback import rollback
    from ddflow.engine import Engine
    from ddflow.flow import Collection, Flow
    from ddflow.fold import merge_on_read
    from ddflow.frontier import CLOSED, NEVER
    from ddflow.identity import Secret
    from ddflow.logs import Full, Restated
    from ddflow.merging.expiry import Expiry
    from ddflow.merging.machine import Machine
    from ddflow.merging.merge import Merge
    from ddflow.merging.strategy import (
        append,
        bool_and,
        bool_or,
        collect,
        fields,
        first,
        first_non_null,
        join_text,
        last,
        last_non_null,
        max,
        min,
        sum,
        union,
    )
    from ddflow.proof.fsck import fsck
    from ddflow.proof.inspect import inspect
    from ddflow.proof.verify import verify
    from ddflow.reader import Reader
    from ddflow.sizing import Estimate, estimate
    from ddflow.snapshot import Snapshot, read
    from ddflow.spec import Tombstone, Upsert, tombstone
    from ddflow.stats import Stats
    from ddflow.step import Step
    from ddflow.upserting import ToUpserts, to_upserts
    from ddflow.verdicts import Verdicts

_HOMES = {
    "CLOSED": "frontier",
    "NEVER": "frontier",
    "Collection": "flow",
    "Engine": "engine",
    "Estimate": "sizing",
    "Flow": "flow",
    "Full": "logs",
    "Reader": "reader",
    "Restated": "logs",
    "Secret": "identity",
    "Snapshot": "snapshot",
    "Stats": "stats",
    "Step": "step",
    "Tombstone": "spec",
    "Upsert": "spec",
    "Verdicts": "verdicts",
    "estimate": "sizing",
    "fsck": "proof.fsck",
    "inspect": "proof.inspect",
    "merge_on_read": "fold",
    "read": "snapshot",
    "tombstone": "spec",
    "verify": "proof.verify",
    "gc": "custody.collect",
    "migrate": "custody.migrate",
    "rollback": "custody.rollback",
    "ToUpserts": "upserting",
    "to_upserts": "upserting",
    "Expiry": "merging.expiry",
    "Machine": "merging.machine",
    "Merge": "merging.merge",
    **dict.fromkeys(
        (
            "append",
            "bool_and",
            "bool_or",
            "collect",
            "fields",
            "first",
            "first_non_null",
            "join_text",
            "last",
            "last_non_null",
            "max",
            "min",
            "sum",
            "union",
        ),
        "merging.strategy",
    ),
}

__all__ = [
    "CLOSED",
    "NEVER",
    "Collection",
    "DdflowError",
    "Engine",
    "Estimate",
    "Expiry",
    "Flow",
    "Full",
    "Machine",
    "Merge",
    "Reader",
    "Restated",
    "Secret",
    "Snapshot",
    "Stats",
    "Step",
    "ToUpserts",
    "Tombstone",
    "Upsert",
    "Verdicts",
    "__version__",
    "append",
    "bool_and",
    "bool_or",
    "collect",
    "estimate",
    "fields",
    "first",
    "first_non_null",
    "fsck",
    "gc",
    "inspect",
    "join_text",
    "last",
    "last_non_null",
    "max",
    "merge_on_read",
    "migrate",
    "min",
    "read",
    "rollback",
    "sum",
    "to_upserts",
    "tombstone",
    "union",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"ddflow.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in ("errors", "testing"):
        return importlib.import_module(f"ddflow.{name}")
    raise AttributeError(f"module 'ddflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

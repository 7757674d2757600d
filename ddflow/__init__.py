"""Turn upsert streams into difference streams, and keep views of them up to date.

An *upsert* is (key, value or None, order, time). An *update* is (data, time, diff). A *collection* is a multiset of
rows: it is the sum of all updates up to a time. The *frontier* is the least time that a later update can have.
docs/design.md defines all terms. README.md in this folder follows one upsert through the folders.

Importing ddflow loads no heavy library. The error classes are loaded at once, and every other name is loaded on first
use.

>>> import ddflow as dd
>>> dd.Upsert(key="id").key
('id',)
"""

import importlib
from typing import TYPE_CHECKING, Any

from ddflow import errors
from ddflow.errors import DdflowError
from ddflow.version import __version__

if TYPE_CHECKING:
    from ddflow import exporters as exporters, testing as testing
    from ddflow.columns.hashing import Secret
    from ddflow.connectors import formats as formats, sinks as sinks, sources as sources
    from ddflow.connectors.files.file_path import FilePath
    from ddflow.dataflow.result import Step, Verdicts
    from ddflow.engine.engine import Engine, Flow
    from ddflow.engine.garbage import gc
    from ddflow.engine.lineage.log_parts import Full, Restated
    from ddflow.engine.read.reads import Reader
    from ddflow.engine.snapshot import Snapshot, read
    from ddflow.engine.stats import Stats
    from ddflow.operators.upserts import ToUpserts, to_upserts
    from ddflow.partitions.evolve import evolve
    from ddflow.plan.aggregates import Aggregate
    from ddflow.plan.collection import Collection
    from ddflow.plan.inputs.differences import delta_cdf
    from ddflow.plan.inputs.spec import KeyedFrame, Tombstone, Upsert, keyed, tombstone
    from ddflow.plan.merge.expiry import Expiry
    from ddflow.plan.merge.machine import Machine
    from ddflow.plan.merge.merge import Merge
    from ddflow.plan.merge.strategy import (
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
    from ddflow.time import CLOSED, NEVER
    from ddflow.tools import plot as plot
    from ddflow.tools.compare import compare
    from ddflow.tools.estimate import Estimate, estimate
    from ddflow.tools.fsck import fsck
    from ddflow.tools.inspect import inspect
    from ddflow.tools.merge_on_read import merge_on_read
    from ddflow.tools.migrate import migrate
    from ddflow.tools.rollback import rollback
    from ddflow.tools.verify import verify

_HOMES = {
    "columns.hashing": "Secret",
    "connectors.files.file_path": "FilePath",
    "dataflow.result": "Step Verdicts",
    "engine.engine": "Engine Flow",
    "engine.read.reads": "Reader",
    "engine.snapshot": "Snapshot read",
    "engine.stats": "Stats",
    "operators.upserts": "ToUpserts to_upserts",
    "partitions.evolve": "evolve",
    "plan.collection": "Collection",
    "plan.inputs.differences": "delta_cdf",
    "plan.merge.expiry": "Expiry",
    "plan.merge.machine": "Machine",
    "plan.merge.merge": "Merge",
    "plan.merge.strategy": "append bool_and bool_or collect fields first first_non_null join_text last last_non_null"
    " max min sum union",
    "plan.aggregates": "Aggregate",
    "plan.inputs.spec": "KeyedFrame Tombstone Upsert keyed tombstone",
    "engine.garbage": "gc",
    "time": "CLOSED NEVER",
    "tools.compare": "compare",
    "tools.estimate": "Estimate estimate",
    "tools.fsck": "fsck",
    "tools.inspect": "inspect",
    "engine.lineage.log_parts": "Full Restated",
    "tools.merge_on_read": "merge_on_read",
    "tools.migrate": "migrate",
    "tools.rollback": "rollback",
    "tools.verify": "verify",
}
_MODULES = {
    "errors": "errors",
    "exporters": "exporters",
    "formats": "connectors.formats",
    "plot": "tools.plot",
    "sinks": "connectors.sinks",
    "sources": "connectors.sources",
    "testing": "testing",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "CLOSED",
    "NEVER",
    "Aggregate",
    "Collection",
    "DdflowError",
    "Engine",
    "Estimate",
    "Expiry",
    "FilePath",
    "Flow",
    "Full",
    "KeyedFrame",
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
    "compare",
    "delta_cdf",
    "estimate",
    "evolve",
    "fields",
    "first",
    "first_non_null",
    "fsck",
    "gc",
    "inspect",
    "join_text",
    "keyed",
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
    if name in _HOME:
        value = getattr(importlib.import_module(f"ddflow.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"ddflow.{_MODULES[name]}")
    remedy = f": write dd.errors.{name}" if name in errors.__all__ else ""
    raise AttributeError(f"module 'ddflow' has no attribute {name!r}{remedy}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})

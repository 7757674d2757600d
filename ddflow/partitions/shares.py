"""Shares: what the old partitions give to one new partition, put together as its inventory.

Invariant: the inventory says what its shares say together. Each share is an inventory by itself, made by a task that
read one old partition. A key is in one share, so runs of several shares have no key in common, and their order does not
matter; but their ranges of identities overlap, so they are not one run. They become the inputs of a merge that has not
begun, and a part that goes on with it merges them as it would any others: nothing is read or written here.

>>> run = RunRecord(lower=0, upper=7, since=3, begin=0, batches=[])
>>> merge = merged([run, RunRecord(lower=2, upper=5, since=4, begin=0, batches=[])])
>>> [(each.lower, each.upper) for each in (merge.output, *merge.inputs)], merge.output.since
([(0, 7), (0, 7), (7, 7)], 4)
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ddflow.dataflow.inflow import add
from ddflow.engine.checkpoint import InputRecord, Inventory, OperatorRecord
from ddflow.trace.records import ArrangementRecord, MergeRecord, RunRecord


def joined(shares: Sequence[Inventory]) -> Inventory:
    """Join shares into one inventory.  O(files)."""
    totals: dict[str, int] = {}
    for each in shares:
        add(totals, each.totals)
    inputs = {name: _input([each.inputs[name] for each in shares if name in each.inputs]) for name in _names(shares, 0)}
    operators = {
        name: _operator([each.operators[name] for each in shares if name in each.operators])
        for name in _names(shares, 1)
    }
    return Inventory(inputs, operators, totals)


def _names(shares: Iterable[Inventory], kind: int) -> list[str]:
    return list(dict.fromkeys(name for each in shares for name in ((each.inputs, each.operators)[kind])))


def _input(given: Sequence[InputRecord]) -> InputRecord:
    return replace(
        given[0],
        arrived=sum(each.arrived for each in given),
        rows=_arrangement([each.rows for each in given]),
        runs=[run for each in given for run in each.runs],
    )


def _operator(given: Sequence[OperatorRecord]) -> OperatorRecord:
    return OperatorRecord(
        [_arrangement(list(each)) for each in zip(*(each.arrangements for each in given), strict=True)]
    )


def _arrangement(given: Sequence[ArrangementRecord]) -> ArrangementRecord:
    """Join the runs of one arrangement from all shares.  Each has one run, of the same shape, or none."""
    runs = [run for each in given for run in each.runs]
    assert len(runs) <= len(given), "a task leaves no merge half done"
    return ArrangementRecord(
        since=max(each.since for each in given),
        upper=max(each.upper for each in given),
        latest=max(each.latest for each in given),
        keys=sum(each.keys for each in given),
        tombstones=sum(each.tombstones for each in given),
        lapsed=0,
        shapes=next((each.shapes for each in given if each.shapes), []),
        items=[*runs] if len(runs) < 2 else [merged(runs)],
    )


def merged(runs: Sequence[RunRecord]) -> MergeRecord:
    """Build a merge, not yet begun, of runs without a common key.

    Inputs follow each other in time, so the first covers all times, and the others none.  O(runs)."""
    lower, upper = min(each.lower for each in runs), max(each.upper for each in runs)
    since = max(each.since for each in runs)
    first = replace(runs[0], lower=lower, upper=upper, since=since)
    others = [replace(each, lower=upper, upper=upper, since=since) for each in runs[1:]]
    return MergeRecord([first, *others], RunRecord(lower, upper, since, 0, []), whole=True, first=0, credit=0)

"""Build a plan with every operator of the registry, for tests of complete states.

Add a new operator only to ``operator_table``. `missing` names operators that no node of the plan uses. Operators that
read the clock need times of a clock, so `untimed` leaves them out; ``test_temporal_filter`` and
``test_partitions_clock`` test them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from operator_table import TABLE

import ddflow as dd
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.plan.verbs.family import load_operators

NARROW: dict[str, Any] = {"city": pa.string(), "n": pa.int32(), "tags": pa.list_(pa.string()), "day": pa.date32()}
"""Columns of the input in addition to its key.

The columns are those of ``operator_table``, one of them with a narrower type, plus a date column.
"""
MORE: dict[str, Any] = {
    "filtered": lambda c: c.filter("n is not null and n > 1"),
    "by_n": lambda c: c.count(["n", "day"]),
    "again": lambda c: c.count("n", name="groups").count("groups"),
    "all": lambda c: c.distinct(),
    "chosen": lambda c: c.project({"m": "coalesce(n, 0)", "b": "n in (1, 2) or day is null"}).distinct(),
    "with_key": lambda c: c.count(["id", "n"]),
    "sums": lambda c: c.group_by("city").agg(s="sum(n)", v="var_samp(n)", last="first(n order by id desc)"),
    "of sums": lambda c: c.group_by("city").agg(s="sum(n)").count("s"),
}
"""Outputs in addition to those of the operator table. These outputs are made from columns that change."""


def plan(columns: dict[str, Any], spec: dict[str, Any] | None = None) -> dd.Flow:
    """Build a plan with every operator of the registry."""
    flow = dd.Flow()
    rows = flow.upserts("a", {"id": pa.int64()} | columns, dd.Upsert(**({"key": "id"} | (spec or {}))))
    flow.output("rows", rows)
    for name, law in TABLE.items():
        flow.output(name, law.make(rows))
    for name, make in MORE.items():
        flow.output(name, make(rows))
    return flow


def missing(flow: dd.Flow) -> set[str]:
    """Return the operators of the registry that the plan lacks."""
    return set(untimed()) - {node.verb for node in flow.nodes}


def untimed() -> dict[str, Any]:
    """Return the operators of the registry that do not read the clock, by verb."""
    return {verb: kind for verb, kind in load_operators().items() if not kind.reads_clock}


def schema(columns: dict[str, Any]) -> pa.Schema:
    return pa.schema({"id": pa.int64()} | columns)


def cast(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    return pa.Table.from_batches([conform_to_wider_schema(table, schema(columns))])

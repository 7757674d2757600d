"""A plan in which every operator of the registry stands, shared by the tests of what is done to whole states.

An operator is added in one place, ``operator_table``; `missing` names those that no node of the plan is made of.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from operator_table import TABLE

import ddflow as dd
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.plan.verbs.family import load_operators

NARROW: dict[str, Any] = {"city": pa.string(), "n": pa.int32(), "tags": pa.list_(pa.string()), "day": pa.date32()}
"""Of the input, beside its key: those of the operator table, one narrower, and a date."""
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
"""Beside the operator table: what is made of columns that change."""


def plan(columns: dict[str, Any], spec: dict[str, Any] | None = None) -> dd.Flow:
    """A plan with every operator."""
    flow = dd.Flow()
    rows = flow.upserts("a", {"id": pa.int64()} | columns, dd.Upsert(**({"key": "id"} | (spec or {}))))
    flow.output("rows", rows)
    for name, law in TABLE.items():
        flow.output(name, law.make(rows))
    for name, make in MORE.items():
        flow.output(name, make(rows))
    return flow


def missing(flow: dd.Flow) -> set[str]:
    """The operators of the registry that the plan has not."""
    return set(load_operators()) - {node.verb for node in flow.nodes}


def schema(columns: dict[str, Any]) -> pa.Schema:
    return pa.schema({"id": pa.int64()} | columns)


def cast(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    return pa.Table.from_batches([conform_to_wider_schema(table, schema(columns))])

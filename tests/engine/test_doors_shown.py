"""Test what a Python prompt and a notebook show of objects: the plan as text, and HTML that no data can break."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from messages import raises

import ddflow as dd
from ddflow import errors

EVIL = "<script>alert('x')</script>&\x1b"


def flow_of(name: str = "orders", value: str = "city") -> dd.Flow:
    flow = dd.Flow()
    schema = {"id": int, value: str, "amount": float, "op": str}
    orders = flow.upserts(name, schema, dd.Upsert("id", order_by="amount", delete=dd.tombstone("op", "D")))
    big = orders.filter("amount > 1")
    flow.output("big", big)
    flow.output("by_city", big.count(value))
    flow.output("per_key", big.count(["id", value], name="n"))
    flow.output("all", orders.project({value: value, "double": "amount * 2"}).count([]))
    flow.output("some", orders.project([value]))
    return flow


EXPLAINED = """\
output big: id int64, city string, amount double
└─ filter('amount > 1')
   └─ input orders        rows move to their [id]; kept by [id]
         id int64, city string, amount double, op string
         key=['id'], order_by=['amount'], delete={'tombstone': 'op', 'value': 'D'}
output by_city: city string, count int64
└─ count(by=['city'])        rows move to their [city]; kept by [city]
   └─ filter('amount > 1')        as above
output per_key: id int64, city string, n int64
└─ count(by=['id', 'city'], name='n')        rows are already partitioned by [id, city]; kept by [id, city]
   └─ filter('amount > 1')        as above
output all: count int64
└─ count(by=[])        one partition; kept
   └─ project({'city': 'city', 'double': 'amount * 2'})
      └─ input orders        as above
output some: city string
└─ project(['city'])        consolidated for the output
   └─ input orders        as above"""


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_plan_is_explained_as_a_tree_with_what_is_kept_and_where_rows_meet() -> None:
    flow = flow_of()
    assert squeezed(flow.explain()) == squeezed(EXPLAINED)
    assert repr(flow.explain("by_city")) == flow.explain("by_city")
    assert squeezed(flow.explain("by_city"))[:2] == squeezed(EXPLAINED)[5:7]
    assert squeezed(flow.explain("orders"))[1].startswith("└─ input orders")
    with raises(dd.errors.SpecError):
        flow.explain("by_citty")


def test_functions_several_inputs_and_deep_plans_are_explained() -> None:
    flow = dd.Flow()
    one, other = (flow.upserts(name, {"id": int, "n": int}, dd.Upsert("id")) for name in ("one", "other"))
    below = (
        one.filter(lambda rows: pc.greater(rows["n"], 1))
        .filter(lambda rows: pc.less(rows["id"], 5))
        .concat(other.negate())
    )
    flow.output("both", below.consolidate())
    text = flow.explain()
    assert text.count("filter(") == 2 and "<lambda>" in text
    assert "├─ " in text and "│  " in text and "negate()" in text
    node: Any = one
    for _ in range(1500):  # past the limit of recursion
        node = node.filter("n > 0")
    flow.output("deep", node)
    assert flow.explain("deep").count("filter('n > 0')") == 1500
    assert "more lines" in flow._repr_html_()


def page(html: str) -> ET.Element:
    """The page as a browser would read it: whatever stands in it is well formed."""
    return ET.fromstring(f"<div>{html}</div>")


def test_pages_show_rows_and_escape_whatever_data_holds() -> None:
    flow = flow_of(EVIL.replace("\x1b", ""), "city <b>")
    shown = page(flow._repr_html_())
    assert "<script>" not in flow._repr_html_() and "city <b>" in "".join(shown.itertext())
    with flow.open() as engine:
        rows = {"id": range(30), "city <b>": [EVIL.replace("\x1b", "")] * 29 + [None], "amount": [2.0] * 30}
        step = engine.step({**rows, "op": ["U"] * 30})
        html = step._repr_html_()
        text = "".join(page(html).itertext())
        assert "<script>" not in html and "<script>" in text and "big: 30 updates" in text and "... and 20 more" in text
        assert page(html).findall(".//tr").__len__() < 100
        verdicts = page(step.verdicts._repr_html_())
        assert [cell.text for cell in verdicts.findall(".//td")] == ["applied", "30"]
        assert "color" not in html


def test_wide_rows_and_long_values_are_cut() -> None:
    flow = dd.Flow()
    schema = pa.schema({"id": pa.int64(), **{f"c{i}": pa.int64() for i in range(40)}, "at": pa.timestamp("s")})
    flow.output("wide", flow.upserts("wide", schema, dd.Upsert("id")))
    with flow.open() as engine:
        step = engine.step({"id": [1], "at": pa.array([60]).view(pa.timestamp("s"))})
        text = "".join(page(step._repr_html_()).itertext())
        assert "columns are not shown" in text and "_diff" in text and "c39" not in text
        assert len(page(step._repr_html_()).findall(".//th")) == 20 + 2
    flow = dd.Flow()
    flow.output("long", flow.upserts("long", {"id": int, "text": str}, dd.Upsert("id")))
    with flow.open() as engine:
        assert len(engine.step({"id": [1], "text": ["x" * 10**6]})._repr_html_()) < 2000


def test_counts_of_verdicts_are_had_as_they_are_printed_and_a_wrong_name_says_which_there_are() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id"))
    flow.output("by_city", rows.count("id", "city"))
    with flow.open() as engine:
        engine.replace({"id": [1, 2], "city": ["Bern", "Chur"]})
        step = engine.replace({"id": [1], "city": ["Bern"]})
        assert str(step.verdicts) == "noop 1, absent 1"
        for name, n in (("noop", 1), ("absent", 1), ("applied", 0), ("pending", 0)):
            assert step.verdicts[name] == getattr(step.verdicts, name) == n
        with pytest.raises(KeyError, match="no verdict 'aplied'; did you mean 'applied'"):
            step.verdicts["aplied"]
        with pytest.raises(AttributeError, match="did you mean 'noop'"):
            step.verdicts.nop  # noqa: B018 - the error is what is asked for
        with pytest.raises(KeyError, match="there is no output 'by_ctiy'; did you mean 'by_city'"):
            step["by_ctiy"]
        assert "by_ctiy" not in step and engine.read("by_city").schema.names == ["id", "city", "count", "_diff"]
        flow.output("later", rows)
        with raises(errors.NotReadable):
            engine.read("later")
        story = engine.why("rows", 1)
        assert repr(story) == str(story) and "<pre>the key (id=1)" in story._repr_html_()
    with raises(errors.SpecError):
        dd.Upsert(key="id", ignore="city")  # type: ignore[call-arg]  # as a user of compare writes it


def test_the_columns_of_an_engine_are_compared_unless_they_are_ignored() -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id")))
    with flow.open() as engine:
        step = engine.step({"id": [1], "city": ["Bern"]})
        other = {"id": [1], "city": ["Zug"]}
        with pytest.warns(UserWarning, match="'_diff' is only in the rows before"):
            (row,) = dd.compare(engine.read("rows"), other, key="id").to_pylist()
        assert row["_changed"] == ["city", "_diff"]
        (row,) = dd.compare(engine.read("rows"), other, key="id", ignore="_diff").to_pylist()
        assert row["_changed"] == ["city"] and "_diff_before" not in row
        assert not dd.compare(engine.read("rows"), step["rows"], key="id", ignore="_time").num_rows


def test_a_mark_of_a_log_is_no_rows_of_a_step() -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int}, dd.Upsert(key="id")))
    with flow.open() as engine, raises(errors.NotArrow):
        engine.step({"rows": dd.Full({"id": [1]})})

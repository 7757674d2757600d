"""Test the plan diagram: it shows the text's content, each collection once, without overlapping boxes."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from itertools import combinations
from random import Random

from hypothesis import given, strategies as st
from messages import raises

import ddflow as dd
from ddflow.plan.text.explain import MOST_BOXES, BoxSize, draw_plan, lay_out_boxes

SVG = "{http://www.w3.org/2000/svg}"


def flow() -> dd.Flow:
    made = dd.Flow()
    orders = made.upserts("orders", {"id": int, "customer": int, "amount": int}, dd.Upsert("id"))
    people = made.upserts("people", {"customer": int, "city": str}, dd.Upsert("customer"))
    pairs = orders.join(people, on="customer")
    made.output("by_city", pairs.filter("amount < 7").group_by("city").agg(n="count(*)"))
    made.output("served", people.join(orders, on="customer", how="semi"))
    return made


def test_every_collection_of_the_text_is_a_box_and_every_output_too() -> None:
    made = flow()
    drawn = xml.fromstring(made.explain(format="svg"))
    texts = [each.text or "" for each in drawn.iter(f"{SVG}text")]
    bold = [each.text or "" for each in drawn.iter(f"{SVG}text") if each.get("font-weight")]
    verbs = {line.lstrip("└├─│ ").partition("(")[0].partition("    ")[0] for line in made.explain().splitlines()}
    for verb in verbs - {"output by_city: city string, n int64", "output served: customer int64, city string"}:
        if verb.startswith(("input", "join", "filter", "agg", "arrange", "distinct", "project")):
            assert any(each.startswith(verb) for each in bold), verb
    assert {"output by_city", "output served", "filter('amount < 7')"} <= set(bold)
    assert "city string, n int64" in texts
    assert len(list(drawn.iter(f"{SVG}rect"))) == len(made.frozen().nodes) + 2


def test_an_engine_adds_its_figures_and_shows_itself_closed_or_open() -> None:
    engine = flow().open()
    with engine:
        engine.step({"people": {"customer": [1], "city": ["Bern"]}})
        assert ">1 row, " in engine.explain(format="svg") and "<table>" in engine._repr_html_()
    assert "<svg" in engine._repr_html_() and "<table>" not in engine._repr_html_()


def test_texts_of_a_plan_cannot_break_the_page() -> None:
    made = dd.Flow()
    made.output("<b>", made.upserts("a<script>", {"id": int, "x&y": str}, dd.Upsert("id")).filter("id < 3 and id > 1"))
    drawn = draw_plan(made)
    xml.fromstring(drawn)
    assert "<script>" not in drawn and "<script>" not in made._repr_html_()


def test_names_and_formats_that_are_none_are_refused_and_large_plans_are_text() -> None:
    made = flow()
    assert "people" in draw_plan(made, "served") and "amount < 7" not in made.explain("served", format="svg")
    with raises(dd.errors.SpecError):
        made.explain("by_cty", format="svg")
    with raises(dd.errors.SpecError):
        made.explain(format="png")  # type: ignore[call-overload]
    node = made.inputs["orders"]
    for n in range(MOST_BOXES):
        node = node.filter(f"id > {n}")
    assert "<pre" in made._repr_html_()


@given(st.integers(0, 10**9))
def test_boxes_never_overlap_and_edges_lead_down(seed: int) -> None:
    random = Random(seed)
    count = random.randint(1, 25)
    inputs = [random.sample(range(n), min(n, random.choice((0, 1, 1, 2, 3)))) for n in range(count)]
    sizes = [BoxSize(random.uniform(5, 300), random.uniform(5, 120)) for _ in range(count)]
    layout = lay_out_boxes(sizes, inputs)
    boxes = list(zip(layout.boxes, sizes, strict=True))
    for (a, one), (b, other) in combinations(boxes, 2):
        apart = abs(a.x - b.x) >= (one.width + other.width) / 2, abs(a.y - b.y) >= (one.height + other.height) / 2
        assert any(apart)
    for place, size in boxes:
        assert size.width / 2 <= place.x + 1e-6 and place.x + size.width / 2 <= layout.width + 1e-6
    for (box, n), lanes in layout.edges.items():
        heights = [layout.boxes[inputs[box][n]].y, *(lane.y for lane in lanes), layout.boxes[box].y]
        assert heights == sorted(heights) and heights[0] < heights[-1]

"""Test an engine's figures: they add up, never change, and format well in a terminal, a notebook and JSON."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.engine.stats import COLUMNS, ArrangementFigures, PendingFigures, Stats
from ddflow.storage.memory import MemoryStore
from ddflow.time import CLOSED, NEVER

PEOPLE = ArrangementFigures(
    keys=950_000,
    tombstones=0,
    batches=3,
    runs=4,
    versions=1_400_000,
    bytes_resident=95_000_000,
    bytes_mapped=0,
    bytes_index=40_000_000,
    written=2_000_000,
    copied=1_000_000,
    owed=0,
)
CITIES = ArrangementFigures(
    keys=50_000,
    tombstones=7,
    batches=1,
    runs=1,
    versions=50_007,
    bytes_resident=4_000_000,
    bytes_mapped=1_000_000,
    bytes_index=3_000_000,
    written=500_000,
    copied=0,
    owed=12,
)
VERDICTS = {"applied": 2_400_000, "superseded": 0, "noop": 100}


def stats(*figures: ArrangementFigures, names: list[str] | None = None, **given: Any) -> Stats:
    named = dict(zip(names or ["people", "cities"], figures, strict=False))
    usual = {"frontier": 9, "since": 8, "pending": PendingFigures(), "verdicts": VERDICTS, "budget": None}
    return Stats(arrangements=named, **usual | given)


def test_totals_are_those_of_the_arrangements_together() -> None:
    found = stats(PEOPLE, CITIES, pending=PendingFigures(4, 120, 1000), budget=10**9)
    assert (found["keys"], found["tombstones"], found["batches"]) == (1_000_000, 7, 4)
    assert (found["versions"], found["effort_owed"]) == (1_450_007, 12)
    assert (found["bytes_resident"], found["bytes_pending"]) == (99_000_000, 120)
    assert found["bytes_mapped"] == 1_000_000 + 1000  # events that wait on disk are mapped too
    assert found["bytes_per_key"] == 100.0  # of index and batches; what waits is no state of a key
    assert found["write_amplification"] == 3_500_000 / 2_500_000
    assert (found["frontier"], found["since"], found["pending"], found["budget"]) == (9, 8, 4, 10**9)
    assert found["verdicts"] == VERDICTS
    assert found["arrangements"]["cities"] == CITIES._asdict()


def test_an_engine_that_has_seen_nothing_has_figures_too() -> None:
    nothing = stats(ArrangementFigures(*[0] * 11), frontier=NEVER, since=NEVER, verdicts={})
    assert nothing["bytes_per_key"] is None
    assert nothing["write_amplification"] == 1.0
    assert "frontier the beginning, since the beginning" in str(nothing)
    assert "bytes a key" not in str(nothing)
    assert "verdicts: no events" in str(nothing)
    bare = stats(frontier=CLOSED)
    assert (bare["keys"], dict(bare["arrangements"])) == (0, {})
    assert "frontier CLOSED" in str(bare)


def test_it_is_a_mapping_that_nobody_can_change() -> None:
    verdicts, arrangements = dict(VERDICTS), {"people": PEOPLE}
    found = Stats(
        frontier=9, since=8, arrangements=arrangements, pending=PendingFigures(), verdicts=verdicts, budget=None
    )
    verdicts["applied"], arrangements["people"] = 0, CITIES
    assert found["verdicts"]["applied"] == 2_400_000
    assert found["arrangements"]["people"]["keys"] == 950_000
    assert {*found} == {*found.keys()} and len(found) == len({*found})
    assert found == stats(PEOPLE) and found != stats(CITIES)
    for inner in (found, found["verdicts"], found["arrangements"], found["arrangements"]["people"]):
        with pytest.raises(TypeError):
            inner["keys"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.keys_seen = 1  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        found["no such figure"]


def test_as_a_dict_it_goes_through_json_whole() -> None:
    found = stats(PEOPLE, CITIES, pending=PendingFigures(3), budget=10**9)
    back = json.loads(json.dumps(found.to_dict()))
    assert back == found.to_dict()
    assert set(back) == set(found)
    assert back["arrangements"]["people"] == PEOPLE._asdict()
    copy = found.to_dict()
    copy["arrangements"]["people"]["keys"] = 0
    assert found["arrangements"]["people"]["keys"] == 950_000


def test_printed_its_columns_stand_under_each_other_and_it_fits_a_terminal() -> None:
    text = str(stats(PEOPLE, CITIES, pending=PendingFigures(4, 120), budget=200_000_000))
    lines = text.splitlines()
    head, *rows = [line for line in lines if re.match("arrangement|people|cities|total", line)]
    ends = [match.end() for match in re.finditer(r"\S+", head)][1:]
    for row in rows:
        assert len(row) == len(head)
        assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for end in ends), row
    assert max(map(len, lines)) <= 130
    assert "950,000" in rows[0] and "95.0 MB" in rows[0] and "40.0 MB" in rows[0]
    assert "1,000,000" in rows[2] and "99.0 MB" in rows[2] and "12" in rows[2]
    assert "100.0 bytes a key, write amplification 1.40, 12 versions owed to merges" in lines
    assert "pending 4 events, 120 B; budget 200.0 MB, 49.5 % used" in lines
    assert lines[-1] == "verdicts: applied 2,400,000, noop 100"
    assert repr(stats(PEOPLE)) == str(stats(PEOPLE))


def test_printed_it_leaves_out_what_is_nowhere_and_a_total_of_one() -> None:
    text = str(stats(PEOPLE))
    assert not re.search("tombstones|mapped|owed$|total", text, re.MULTILINE)
    assert "no merge in progress" in text and "no budget" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "pending 1 event," in str(stats(PEOPLE, pending=PendingFigures(1)))


def test_wide_and_combining_characters_do_not_move_the_columns() -> None:
    text = str(stats(PEOPLE, CITIES, names=["顧客", "e\u0301te\u0301"]))
    wide, accents, total = (
        next(line for line in text.splitlines() if line.startswith(name))
        for name in ("顧客", "e\u0301te\u0301", "total")
    )
    assert len(wide) + 2 == len(accents) - 2 == len(total)


NAMES = ["<script>alert('x')</script>", 'a"b&c', "two\nlines", "red \x1b[31m", "tab\there", ""]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_an_input_breaks_a_line_or_reaches_the_terminal_raw(name: str) -> None:
    text = str(stats(PEOPLE, CITIES, names=[name, "cities"]))
    assert len(text.splitlines()) == len(str(stats(PEOPLE, CITIES)).splitlines())
    assert "\x1b" not in text and "\t" not in text


class Cells(HTMLParser):
    """The texts of all table cells, and the tags that were met."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        if tag in ("td", "th"):
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.texts[-1] += data


@pytest.mark.parametrize("name", NAMES)
def test_in_a_notebook_it_is_a_table_in_which_names_are_text(name: str) -> None:
    page = Cells()
    page.feed(stats(PEOPLE, CITIES, names=[name, "cities"])._repr_html_())
    page.close()
    assert page.open == []
    assert page.tags <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    shown = name if name.isprintable() else name.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\t", "\\t")
    columns = 1 + len(COLUMNS)
    assert page.texts[columns] == shown
    assert len(page.texts) == 4 * columns  # the head, two arrangements, their total
    assert "950,000" in page.texts and "95.0 MB" in page.texts


def events(keys: range, city: str | None, at: int) -> pa.Table:
    n = len(keys)
    return pa.table({"id": pa.array(keys), "city": pa.array([city] * n, pa.string()), "at": pa.array([at] * n)})


def test_an_engine_says_how_many_keys_it_holds_how_many_are_deleted_and_what_they_take() -> None:
    flow = dd.Flow()
    schema = {"id": pa.int64(), "city": pa.string(), "at": pa.int64()}
    input = flow.upserts("s", schema, dd.Upsert("id", order_by="at", delete="city is null"))
    flow.output("by_city", input.project(["city"]).count())
    with flow.open(memory="10MB") as engine:
        empty = engine.stats()
        assert (empty["keys"], empty["bytes_per_key"], empty["write_amplification"]) == (0, None, 1.0)
        engine.step({"s": events(range(100), "Bern", 1)}, time=1)
        engine.step({"s": events(range(30), None, 2)}, time=2)
        engine.step({"s": events(range(50), "Chur", 1)}, time=3)
        found = engine.stats()
        state, count = found["arrangements"].values()
        # 30 deleted keys kept their order, so that an older row cannot bring them back.
        assert (state["keys"], state["tombstones"]) == (70, 30)
        assert (count["keys"], count["tombstones"]) == (2, 0)
        assert (found["keys"], found["tombstones"]) == (72, 30)
        assert found["verdicts"] == engine.verdicts.counts
        assert (found["frontier"], found["since"], found["budget"]) == (4, 3, 10**7)
        for each in (state, count):
            assert 0 < each["bytes_index"] < each["bytes_resident"]
            assert each["runs"] > 0 and each["batches"] > 0
            assert each["keys"] + each["tombstones"] <= each["versions"] <= each["written"] + each["copied"]
        assert found["bytes_per_key"] == found["bytes_resident"] / 72
        assert found["write_amplification"] >= 1
        assert engine.stats() == found
        assert str(found).splitlines()[1].startswith("arrangement")


def test_an_engine_counts_what_waits_for_its_time_apart_from_its_state() -> None:
    flow = dd.Flow()
    schema = {"id": pa.int64(), "city": pa.string(), "at": pa.int64()}
    flow.output("rows", flow.upserts("s", schema, dd.Upsert("id", time="at")))
    with flow.open() as engine:
        engine.push({"s": events(range(100), "Bern", 5)})
        waiting = engine.stats()
        assert (waiting["pending"], waiting["keys"]) == (100, 0)
        assert waiting["bytes_pending"] > 100 * 16
        engine.advance_to(6)
        released = engine.stats()
        assert (released["pending"], released["bytes_pending"], released["keys"]) == (0, 0, 100)


def test_many_steps_over_the_same_keys_show_what_merges_cost_and_still_owe() -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", {"id": pa.int64(), "n": pa.int64()}, dd.Upsert("id")))
    with flow.open() as engine:
        for time in range(60):
            n = 2000
            engine.step({"s": pa.table({"id": pa.array(range(n)), "n": pa.array([time] * n)})}, time=time)
            found = engine.stats()
            state = found["arrangements"]["s"]
            assert found["effort_owed"] == state["owed"]
            assert state["versions"] >= state["keys"] == 2000
            assert found["write_amplification"] == (state["written"] + state["copied"]) / state["written"]
        assert state["written"] == 60 * 2000
        assert 1 < found["write_amplification"] < 3
        assert found["versions"] < 10 * 2000


def expiring(expiry: dd.Expiry) -> dd.Flow:
    flow = dd.Flow()
    spec = dd.Upsert("id", "at", delete=dd.tombstone("gone"), expiry=expiry)
    flow.output("rows", flow.upserts("s", {"id": pa.int64(), "at": pa.int64(), "gone": pa.bool_()}, spec))
    return flow


def of(*rows: tuple[int, int, bool]) -> dict[str, pa.Table]:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return {"s": pa.table(columns, names=["id", "at", "gone"])} if rows else {}


@pytest.mark.parametrize("how", ["retract", "forget"])
@pytest.mark.parametrize("memory", [None, "64MB"])
def test_a_forgotten_key_is_no_tombstone_also_when_the_state_is_opened_again(how: Any, memory: str | None) -> None:
    flow, store = expiring(dd.Expiry(ttl=30, on_expire=how)), MemoryStore()
    # By time: what comes, how many keys are live then, and how many are deleted and must be known.
    back = (
        []
        if memory
        else [
            (of((1, 110, False)), 2, 1),  # in files a key that comes back has an older version, which counts
            (of((3, 126, True), (3, 127, True)), 2, 1),
        ]
    )
    story = [
        (of((1, 80, False), (2, 120, False), (3, 125, True)), 2, 1),
        (of(), 1, 1),  # 1 was forgotten: its order is below 95
        *back,
        (of((4, 200, False)), 2 + bool(back), 1),
        (of(), 1, 0),  # 2 was forgotten, and so was that 3 was deleted
        (of((5, 201, True)), 1, 1),
    ]
    engine = flow.open(store, memory=memory)
    for time, (rows, keys, deleted) in enumerate(story):
        engine.step(rows, time)
        assert (engine.stats()["keys"], engine.stats()["tombstones"]) == (keys, deleted), time
        engine.close()
        engine = flow.open(store.reopen(), memory=memory)
        assert (engine.stats()["keys"], engine.stats()["tombstones"]) == (keys, deleted), time
        with dd.Snapshot.open(store.reopen()) as snapshot:
            assert snapshot.stats()["tombstones"] == deleted
        assert dd.inspect(store.reopen())["inputs"]["s"]["tombstones"] == deleted
        assert dd.fsck(store.reopen()).ok
    engine.close()


def test_what_was_written_and_copied_is_counted_since_the_engine_was_opened() -> None:
    flow, store = expiring(dd.Expiry(tombstone_ttl=5)), MemoryStore()
    with flow.open(store) as engine:
        engine.step(of((1, 1, False), (2, 1, False)), 1)
        engine.step(of((1, 2, False)), 2)
        assert engine.stats()["arrangements"]["s"]["written"] == 3
        engine.compact()
        assert engine.stats()["write_amplification"] == 5 / 3
    with flow.open(store.reopen()) as engine:
        state = engine.stats()["arrangements"]["s"]
        assert (state["versions"], state["written"], state["copied"]) == (2, 0, 0)
        assert engine.stats()["write_amplification"] == 1.0
        engine.step(of((1, 3, False)), 3)
        assert engine.stats()["arrangements"]["s"]["written"] == 1

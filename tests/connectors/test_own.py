"""Test custom sources and sinks: errors name missing or misspelled methods, and the documented sink works."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pages
import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.api import OpenSink, OpenSource, Polled, Source, TableSink
from ddflow.errors import SchemaMismatch, SinkAhead, SinkFailed, SinkRefused, SpecError

ROW = pa.RecordBatch.from_pylist([{"id": 1, "city": "Bern"}])
GONE: Any = object()
"""An attribute that a class lacks."""


class Rows(OpenSource):
    """Gives what it was made with, then ends."""

    def __init__(self, *given: Any) -> None:
        self.given = list(given)

    @property
    def ended(self) -> bool:
        return not self.given

    def lag(self) -> int | None:
        return len(self.given)

    def poll(self, room: int) -> Any:
        return self.given.pop(0) if self.given else None


def source(*given: Any, **attributes: Any) -> Any:
    own = {"kind": "feed", "target": "https://example.org", "open": lambda self, inputs, position: Rows(*given)}
    return type("Feed", (Source,), {k: v for k, v in {**own, **attributes}.items() if v is not GONE})()


def sink(**attributes: Any) -> Any:
    own = {"kind": "mine", "mode": "upsert", "target": "here", "open": lambda self, shape: None}
    return type("Mine", (TableSink,), {k: v for k, v in {**own, **attributes}.items() if v is not GONE})()


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("people", made.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id")).filter("id > 0"))
    return made


GOOD = source(Polled({"rows": [ROW]}, 1))


@pytest.mark.parametrize(
    "attached",
    [
        (source(kind=GONE), None),
        (source(kind=GONE, kinds="feed"), None),
        (source(kind=5), None),
        (source(target=None), None),
        (source(unit=""), None),
        ("files:x.csv", None),
        (type(GOOD), None),
        (source(open=lambda self, inputs, position: None), None),
        (source([ROW]), None),
        (source(Polled({"rows": ROW}, 1)), None),  # type: ignore[dict-item]
        (source(Polled({"rows": [pa.table(ROW)]}, 1)), None),  # type: ignore[list-item]
        (source(Polled({"rows": [ROW]}, {object()})), None),
        (GOOD, sink(mode=GONE)),
        (GOOD, sink(mode=GONE, mod="upsert")),
        (GOOD, sink(mode="upserts")),
        (GOOD, sink(modes="upsert")),
        (GOOD, sink(modes=("upsert", "merge"))),
        (GOOD, sink(kind=GONE)),
        (GOOD, sink(target=7)),
        (GOOD, "sqlite:x.db#t"),
        (GOOD, dd.sinks.sqlite),
        (GOOD, sink()),
    ],
)
def test_what_is_missing_or_misspelled_is_named(attached: Any, tmp_path: Path) -> None:
    given, to = attached
    with flow().open(tmp_path / "state") as engine, raises(SpecError):
        engine.run({"rows": given}, {} if to is None else {"people": to})


def test_python_names_methods_that_a_class_lacks_and_inputs_are_looked_up() -> None:
    for base, name in ((Source, "open"), (TableSink, "open"), (OpenSource, "poll"), (OpenSink, "write")):
        with pytest.raises(TypeError, match=f"abstract.*{name}"):
            type("Mine", (base,), {})()
    with flow().open() as engine, raises(SchemaMismatch):
        engine.run({"rows": source(Polled({"row": [ROW]}, 1))})


def test_a_whole_state_refuses_what_lacks_a_mode_in_sync_and_checks_too(tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine:
        engine.run({"rows": GOOD})
        with raises(SpecError):
            engine.sync({"people": sink(mode=GONE)})


def page_classes() -> Any:
    """The sink of the page on sources and sinks, as it stands there."""
    text = (pages.DOCS / "sources-and-sinks.md").read_text("utf-8")
    every = doctest.DocTestParser().get_examples(text)
    wanted = [each for each in every if each.source.startswith(("import", "from", "class Json"))]
    test = doctest.DocTest(wanted, {}, "page", None, None, None)
    assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
    return test.globs["JsonSink"]


def held(place: Path) -> list[tuple[int, str]]:
    return sorted((row["id"], row["city"]) for row in json.loads(place.read_text())["rows"])


def test_the_sink_of_the_page_takes_each_epoch_once_and_is_mended_by_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, place, source_ = page_classes(), tmp_path / "people.json", {"rows": dd.sources.files(tmp_path / "*.csv")}
    steps = [[(1, "Bern"), (2, "Chur")], [(1, "Genf"), (3, "Bern")], [(2, "Olten")]]
    failing = [True, False]
    save = type(own(str(place)).open(None)).save

    def flaky(self: Any, record: Any, rows: Any) -> None:
        """Fails before the write, then after it: as a crash in between does."""
        if failing and record is not None:
            if failing.pop(0):
                raise SinkFailed("write", "the disk is away", "wait")
            save(self, record, rows)
            raise SinkFailed("write", "the answer was lost", "wait")
        save(self, record, rows)

    monkeypatch.setattr(type(own(str(place)).open(None)), "save", flaky)
    for number, rows in enumerate(steps):
        (tmp_path / f"{number}.csv").write_text("id,city\n" + "".join(f"{id},{city}\n" for id, city in rows))
        with flow().open(tmp_path / "state") as engine:
            engine.run(source_, {"people": own(str(place))})
            expected = sorted((row["id"], row["city"]) for row in engine.read("people").to_pylist())
        assert held(place) == expected
    assert not failing and expected == [(1, "Genf"), (2, "Olten"), (3, "Bern")]
    place.unlink()
    with flow().open(tmp_path / "state") as engine:
        (tmp_path / "9.csv").write_text("id,city\n9,Bern\n")
        with raises(SinkRefused):
            engine.run(source_, {"people": own(str(place))})
        engine.sync({"people": own(str(place))})
        assert held(place) == expected
        engine.run(source_, {"people": own(str(place))})
    assert held(place) == [*expected, (9, "Bern")]
    # Another state's table is refused.
    with flow().open(tmp_path / "other") as engine, pytest.raises((SinkAhead, SinkRefused)):
        engine.run(source_, {"people": own(str(place))})

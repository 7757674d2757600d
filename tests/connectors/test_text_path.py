"""`dd.TextPath`: a path with how its text is written, by every door of Python that takes paths."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddflow as dd
from ddflow.errors import SpecError, UnreadableInput


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("rows", made.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id")))
    return made


def test_each_door_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "1.csv"
    path.write_bytes("id;city\n1;Zürich, ZH\n2;n/a\n".encode("cp1252"))
    file, right = (
        dd.TextPath(path, delimiter=";", null="n/a", encoding="cp1252"),
        {"id": [1, 2], "city": ["Zürich, ZH", None]},
    )
    for door in ("step", "replace", "run"):
        with flow().open() as engine:
            if door == "run":
                engine.run({"rows": dd.sources.files(file, full=True)})
            else:
                getattr(engine, door)(file)
            assert dd.compare(right, engine.read("rows").drop_columns(["_diff"]), key="id").num_rows == 0, door
    assert dd.compare(right, file, key="id").num_rows == 0
    with pytest.raises(UnreadableInput, match=r"dd\.TextPath\(.*delimiter=';'\)"):
        dd.compare(right, path, key="id")


def test_what_is_no_way_to_write_text_is_refused() -> None:
    with pytest.raises(SpecError, match="not one ASCII character"):
        dd.TextPath("1.csv", delimiter="||")
    with pytest.raises(SpecError, match="no such encoding"):
        dd.TextPath("1.csv", encoding="cp-none")

"""Test that an error in rows from a path names the path, and the row as a reader of the file counts rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from messages import raises

import ddflow as dd
from ddflow import errors


def opened() -> dd.Engine:
    flow = dd.Flow()
    flow.output("beds", flow.upserts("beds", {"bed_id": int, "ward": str}, dd.Upsert(key="bed_id")))
    return flow.open()


@pytest.mark.parametrize(
    ("name", "text", "verb", "error", "said"),
    [
        ("null.csv", "bed_id,ward\n1,a\n,b\n", "step", errors.NullKey, "first in row 3; fix"),
        ("null.jsonl", '{"bed_id": 1}\n{"bed_id": null}\n', "step", errors.NullKey, "first in row 2; fix"),
        (
            "twice.csv",
            "bed_id,ward\n1,a\n1,b\n",
            "replace",
            errors.DuplicateKeys,
            "the first of them in row 2, and in row 3; ",
        ),
        ("empty.csv", "bed_id,ward\n", "replace", errors.EmptyContents, "pass allow_empty=True"),
        ("new.csv", "bed_id,ward,floor\n1,a,2\n", "step", errors.SchemaMismatch, "'floor' that was not declared"),
        ("lost.csv", "bed,ward\n1,a\n", "replace", errors.SchemaMismatch, "'bed_id' is missing; .*did you mean 'bed'"),
    ],
)
def test_an_error_of_a_file_names_it_and_its_row(
    name: str, text: str, verb: str, error: type[errors.DdflowError], said: str, tmp_path: Path
) -> None:
    (file := tmp_path / name).write_text(text)
    with opened() as engine:
        engine.step({"bed_id": [1, 9], "ward": ["a", "b"]})
        for given in (file, str(file)):
            with pytest.raises(error, match=said) as caught:
                getattr(engine, verb)(given)
            assert str(caught.value).count(str(file)) == 1 and "counted from 0" not in str(caught.value)
        assert engine.read("beds").num_rows == 2


def test_rows_of_several_files_and_of_no_path_are_counted_as_they_were(tmp_path: Path) -> None:
    for day in "12":
        (tmp_path / f"{day}.csv").write_text("bed_id,ward\n1,a\n,b\n")
    with opened() as engine:
        with raises(errors.NullKey) as caught:
            engine.step(tmp_path)
        assert str(tmp_path) in caught.value.asked
        with raises(errors.NullKey):
            engine.step({"bed_id": [None], "ward": ["a"]})

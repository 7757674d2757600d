"""Test that errors in rows of a file source name the file, and the row as a reader of the file counts rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import raises

import ddflow as dd
from ddflow import errors
from ddflow.connectors.api import BatchStart
from ddflow.connectors.error_location import add_file_to_errors

GREAT = 9223372036854775807


def beds(what: Any = None, **more: Any) -> dd.Flow:
    """A flow of beds, whose output is ``what`` of them."""
    flow = dd.Flow()
    rows = flow.upserts("beds", {"bed_id": int, "n": int}, dd.Upsert(key="bed_id", **more))
    flow.output("out", rows if what is None else what(rows))
    return flow


def written(folder: Path, **files: str) -> str:
    """Files of CSV, of the columns of beds, and the pattern of them."""
    for name, rows in files.items():
        (folder / f"{name}.csv").write_text(f"bed_id,n\n{rows}\n")
    return f"{folder}/*.csv"


def fails(flow: dd.Flow, source: Any, folder: Path, error: type[errors.DdflowError], **how: Any) -> str:
    """What a run says, without the folder."""
    with flow.open() as engine, pytest.raises(error) as caught:
        engine.run({"beds": source}, **how)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"1": "1,1\n2,2", "2": "3,3\n,4"},
            "2.csv: rows for 'beds': the key ['bed_id'] is null in 1 rows, first in row 3;",
        ),
        (
            {"1": "1,1\n,2", "2": "3,3\n,4"},
            "1.csv: rows for 'beds': the key ['bed_id'] is null in 2 rows, first in row 3;",
        ),
        (
            {"1": "1,1", "2": "2,2", "3": ",3"},
            "3.csv: rows for 'beds': the key ['bed_id'] is null in 1 rows, first in row 2;",
        ),
    ],
)
@pytest.mark.parametrize("memory", [None, "32MiB"])
def test_a_null_key_names_the_file_of_its_row(
    files: dict[str, str], said: str, memory: str | None, tmp_path: Path
) -> None:
    source = dd.sources.files(written(tmp_path, **files))
    with beds().open(memory=memory) as engine:
        with pytest.raises(errors.NullKey) as caught:
            engine.run({"beds": source})
        assert str(caught.value).replace(f"{tmp_path}/", "").startswith(said)
        assert engine.read("out").num_rows == 0


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_row_is_counted_as_its_reader_counts_also_far_into_a_file(ending: str, tmp_path: Path) -> None:
    n, path = 150_000, tmp_path / f"a.{ending}"
    ids: list[int | None] = [*range(n), None]
    if ending == "parquet":
        pq.write_table(pa.table({"bed_id": ids, "n": ids}), path, row_group_size=7_000)
    elif ending == "jsonl":
        path.write_text("".join(f'{{"bed_id": {"null" if x is None else x}}}\n' for x in ids))
    else:
        between = "," if ending == "csv" else "\t"
        path.write_text(f"bed_id{between}n\n" + "".join(f"{'' if x is None else x}{between}1\n" for x in ids))
    number = n + 1 + (ending in ("csv", "tsv"))
    for rows in (None, 10_000):  # one epoch, and many
        found = fails(beds(), dd.sources.files(path), tmp_path, errors.NullKey, rows=rows)
        assert found.startswith(f"a.{ending}: ") and f"first in row {number:,}; fix" in found


def test_rows_behind_a_commit_are_counted_from_the_files_beginning(tmp_path: Path) -> None:
    n = 150_000
    pattern = written(tmp_path, a="\n".join(f"{x},1" for x in range(n)))
    (text := Path(tmp_path / "a.csv")).write_text(text.read_text() + ",7\n")
    for _ in "12":
        with beds().open(tmp_path / "state") as engine, raises(errors.NullKey):
            engine.run({"beds": dd.sources.files(pattern)}, rows=10_000)


def test_twice_in_full_contents_names_the_file(tmp_path: Path) -> None:
    source = dd.sources.files(written(tmp_path, a="1,1\n2,2", b="1,1\n1,2"), full=True)
    found = fails(beds(), source, tmp_path, errors.DuplicateKeys)
    assert found.startswith("b.csv: replace of 'beds' at time 2: 1 keys have more than one row")


def test_what_is_of_no_row_names_the_files_it_may_be_of(tmp_path: Path) -> None:
    flow = beds(lambda rows: rows.agg(s="sum(n)"))
    few, many = tmp_path / "few", tmp_path / "many"
    for folder, n, said in ((few, 2, "0.csv, 1.csv: "), (many, 5, "0.csv ... 4.csv (5 files): ")):
        folder.mkdir()
        source = dd.sources.files(written(folder, **{str(x): f"{x},{GREAT}" for x in range(n)}))
        assert fails(flow, source, folder, errors.AggregateOverflow).startswith(f"{said}sum")


def test_a_computed_row_is_named_by_its_values_alone(tmp_path: Path) -> None:
    flow = beds(lambda rows: rows.project({"m": "n + 1"}))
    found = fails(flow, dd.sources.files(written(tmp_path, a=f"1,1\n2,{GREAT}")), tmp_path, errors.ExpressionError)
    assert found.startswith("a.csv: cannot compute column 'm'") and f"(n = {GREAT})" in found


def test_times_that_are_null_or_late_name_the_file_and_row(tmp_path: Path) -> None:
    flow = beds(time="n")
    source = dd.sources.files(written(tmp_path, a="1,1", b="2,2\n3,"))
    found = fails(flow, source, tmp_path, errors.SchemaMismatch, lateness=1)
    assert found.startswith("b.csv: the times of 'beds': 'n' is null in 1 rows, first in row 3;")
    with flow.open() as engine:
        written(tmp_path, a="1,9", b="2,10\n3,1")
        engine.run({"beds": dd.sources.files(f"{tmp_path}/a.csv")}, lateness=1)
        with raises(errors.LateEvent):
            engine.run({"beds": dd.sources.files(f"{tmp_path}/b.csv")}, lateness=1)


def test_columns_that_differ_between_files_of_an_epoch_keep_their_places(tmp_path: Path) -> None:
    pattern = written(tmp_path, a="1,1", b="2,2", d="4,4\n5,5\n,6")
    (tmp_path / "c.csv").write_text("bed_id\n3\n")
    found = fails(beds(), dd.sources.files(pattern), tmp_path, errors.NullKey)
    assert found.startswith("d.csv: ") and "first in row 4;" in found


def test_what_is_of_no_rows_names_no_file() -> None:
    with raises(errors.SpillFull), add_file_to_errors([(BatchStart("a.csv", 2), 1)]):
        raise errors.SpillFull("spill", "full", "wait")
    with raises(errors.NullKey), add_file_to_errors([]):
        raise errors.NullKey("rows", "row 1, counted from 0", "mend")

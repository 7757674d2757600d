"""Test files that cannot be read or do not fit: one error for each file, with the name of the file and the place.

No input may crash, be read partly without a message, or raise a library's error.
"""

from __future__ import annotations

import gc
import gzip
import os
import random
import re
import struct
import time
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import long_test
from messages import raises
from test_files import NESTING, read, write

from ddflow.connectors.files import FileOptions, open_files
from ddflow.connectors.files.kinds import KINDS
from ddflow.connectors.files.reader import TextFile
from ddflow.errors import DdflowError, SchemaMismatch, SpecError, UnreadableInput

TABLE = pa.table({"id": range(500), "text": [f"text {n}" for n in range(500)], "list": [[n] for n in range(500)]})
FLAT = TABLE.select(["id", "text"])
ZIPPED = [ending for ending, kind in KINDS.items() if kind.wrapped]
FRAMED = [".parquet", ".arrow", ".feather", ".arrows", *ZIPPED]


def refused(*paths: Path, types: dict[str, pa.DataType] | None = None) -> str:
    """The message with which files are refused, which must name the last of them."""
    with pytest.raises(DdflowError) as caught:
        read(*paths, types=types)
    assert isinstance(caught.value, UnreadableInput | SchemaMismatch)
    assert str(paths[-1]) in caught.value.asked
    assert caught.value.found and caught.value.fix
    return str(caught.value).replace(str(paths[-1].parent) + "/", "")


@pytest.mark.parametrize("ending", KINDS)
def test_an_empty_file_is_refused(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"a{ending}").write_bytes(b"")
    assert "it is empty (0 bytes)" in refused(tmp_path / f"a{ending}")
    first = write(tmp_path / f"first{ending}", FLAT)
    assert "it is empty (0 bytes)" in refused(first, tmp_path / f"a{ending}")


@pytest.mark.parametrize("ending", KINDS)
def test_a_file_of_another_kind_than_it_is_called_is_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(random.Random(1).randbytes(4000))
    assert "file is complete" in refused(path) or "a quote is not closed" in refused(path)


@pytest.mark.parametrize("ending", FRAMED)
def test_a_file_that_is_cut_anywhere_is_refused(ending: str, tmp_path: Path) -> None:
    whole = write(tmp_path / f"whole{ending}", TABLE if ending in NESTING else FLAT).read_bytes()
    path = tmp_path / f"cut{ending}"
    for size in [*range(1, 40), *range(40, len(whole), 97), *range(len(whole) - 20, len(whole))]:
        path.write_bytes(whole[:size])
        assert refused(path), size


def test_a_stream_that_runs_into_zeros_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    with pa.ipc.new_stream(str(path), FLAT.schema) as stream:
        stream.write_table(FLAT, max_chunksize=100)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 // 8 * 8] + bytes(len(whole) // 2))
    assert refused(path)
    path.write_bytes(whole + b"more")
    assert "ends at byte" in refused(path)


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".arrows"])
def test_a_flipped_bit_is_refused_or_leaves_as_many_rows(ending: str, tmp_path: Path) -> None:
    whole = write(tmp_path / f"whole{ending}", TABLE).read_bytes()
    draw, path, caught = random.Random(7), tmp_path / f"flipped{ending}", 0
    for _ in range(300):
        place, bit = draw.randrange(len(whole)), draw.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
        try:
            assert read(path).num_rows == TABLE.num_rows
        except DdflowError:
            caught += 1
    assert caught > 10


def test_offsets_that_point_elsewhere_are_refused_before_anybody_follows_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"a": ["x" * 11, "y" * 13]}))
    whole, offsets = path.read_bytes(), struct.pack("<3i", 0, 11, 24)
    assert whole.count(offsets) == 1
    path.write_bytes(whole.replace(offsets, struct.pack("<3i", 0, 2**31 - 1, 24)))
    assert refused(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,n\n1,2\n3\n", "a.csv: row 3: Expected 2 columns, got 1: 3; fix the row"),
        ("id,n\n1,2\n3,4,5\n", "a.csv: row 3: Expected 2 columns, got 3: 3,4,5; fix"),
        ('id,n\n1,2\n3,"4\n5,6\n', "a.csv, line 3: a quote opened there is never closed"),
        ("id,id\n1,2\n", "a.csv: the columns ['id'] occur more than once"),
        ("\n\n", "a.csv: "),
    ],
)
def test_a_csv_that_is_none_is_refused_with_its_row(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert said in refused(tmp_path / "a.csv")


def test_a_quote_that_swallows_the_rest_is_found_across_blocks_and_in_gzip(tmp_path: Path) -> None:
    text = "id,n\n" + "1,2\n" * 10 + '3,"4\n' + "5,6\n" * 100
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert "a.csv, line 12: a quote opened there" in refused(tmp_path / "a.csv")
    assert "a.csv.gz, line 12: a quote opened there" in refused(tmp_path / "a.csv.gz")
    (tmp_path / "a.csv").write_text(text + "7,8\n" * 2_000_000)  # longer than a block
    assert "a quote is not closed" in refused(tmp_path / "a.csv")


BAD_VALUES = {
    "int64": "1.5",
    "double": "x",
    "bool": "yes",
    "date32[day]": "2024-02-30",
    "timestamp[us]": "noon",
    "decimal128(5, 2)": "1.234",
    "binary": "no base64!",
    "time64[us]": "25:00:00",
}
GOOD_VALUES = {
    "int64": "1",
    "double": "1",
    "bool": "true",
    "date32[day]": "2024-02-29",
    "timestamp[us]": "2024-02-29",
    "decimal128(5, 2)": "1.23",
    "binary": "AA==",
    "time64[us]": "23:00:00",
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", BAD_VALUES)
def test_a_value_that_does_not_fit_is_named_with_its_file_row_and_column(kind: str, tmp_path: Path) -> None:
    from ddflow.columns.casts import parse_type

    good, bad, rows = GOOD_VALUES[kind], BAD_VALUES[kind], 150_000  # beyond the first block
    (tmp_path / "a.csv").write_text("id,b\n" + f"1,{good}\n" * rows + f'2,"{bad}"\n')
    said = refused(tmp_path / "a.csv", types={"b": parse_type(kind)})
    assert said.startswith("a.csv, " if kind == "binary" else f"a.csv, row {rows + 2:,}, column 'b': "), said
    other = "decimal(38,3)" if "decimal" in kind else "string"
    assert "column 'b'" in said and said.endswith(f"declare another type: {{'b': '{other}'}}")
    quoted = kind not in ("int64", "double", "bool")
    lines = [f'"{text}"' if quoted or text in ("x", "yes") else text for text in (good, bad)]
    (tmp_path / "a.jsonl").write_text(f'{{"id": 1, "b": {lines[0]}}}\n' * rows + f'{{"id": 2, "b": {lines[1]}}}\n')
    said = refused(tmp_path / "a.jsonl", types={"b": parse_type(kind)})
    assert said.startswith(f"a.jsonl, line {rows + 1:,}, column 'b': {lines[1]} is not a valid {kind}; "), said


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": 1', "it is not valid JSON"),
        ("[1, 2]", "it is a list, not an object"),
        ('"x"', "it is a str, not an object"),
        (
            '{"id": "x"}',
            "column 'id': \"x\" does not fit the guessed type int64; fix it, or declare the type that",
        ),
        ('{"id": 1.5}', "{'id': 'double'}"),
        (
            '{"id": 1, "idd": 2}',
            "the column 'idd' occurs at the beginning of no file; declare it: {'idd': 'string'}",
        ),
        ('{"id": 1, "id": 2}', "the member 'id' occurs twice"),
        ('{"id": 1, "p": {"x": 1, "y": 2}}', "column 'p'"),
        ('{"id": 1, "p": [1]}', "column 'p': [1] does not fit the guessed type struct<x: int64>"),
    ],
)
def test_a_json_line_that_does_not_fit_is_named_with_its_number(line: str, said: str, tmp_path: Path) -> None:
    good = '{"id": 1, "p": {"x": 1}}\n'
    (tmp_path / "first.jsonl").write_text(good)
    before = 100_000  # beyond the head
    (tmp_path / "a.jsonl").write_text(good * before + "\n" + line + "\n" + good * 5000)
    found = refused(tmp_path / "first.jsonl", tmp_path / "a.jsonl")
    assert found.startswith(f"a.jsonl, line {before + 2:,}") and said in found


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id,city\n1,Zürich\n".encode("latin-1"))
    (tmp_path / "b.csv").write_bytes("id,zürich\n1,2\n".encode("latin-1"))
    (tmp_path / "a.jsonl").write_bytes('{"id": 1}\n{"id": 2, "city": "Zürich"}\n'.encode("latin-1"))
    assert "a.csv, row 2, column 'city': it is not UTF-8" in refused(tmp_path / "a.csv")
    assert "not UTF-8" in refused(tmp_path / "b.csv")
    assert "a.jsonl, line 2: it is not UTF-8" in refused(tmp_path / "a.jsonl")


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".arrows"])
def test_a_column_of_another_type_is_named_with_file_and_both_types(ending: str, tmp_path: Path) -> None:
    first = write(tmp_path / f"1{ending}", pa.table({"id": [1], "amount": [1]}))
    other = write(tmp_path / f"2{ending}", pa.table({"id": [1], "amount": [1.5]}))
    said = refused(first, other).replace(f"{tmp_path}/", "")
    assert said.startswith(f"column 'amount' of rows for 2{ending}: row 0 holds 1.5 (double), which does not fit int64")
    text = write(tmp_path / f"3{ending}", pa.table({"id": [1], "amount": ["1"]}))
    said = refused(first, text).replace(f"{tmp_path}/", "")
    assert said.startswith(f"3{ending}, column 'amount': it is string, but in 1{ending} it is int64; declare one type")
    assert read(first, other, types={"amount": pa.float64()})["amount"].to_pylist() == [1.0, 1.5]
    assert "it is double, but list<item: int8> is declared" in refused(other, types={"amount": pa.list_(pa.int8())})


def test_a_value_that_a_declared_type_cannot_hold_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"zip": ["1", "x"]}))
    assert "column 'zip': Failed to parse string: 'x'" in refused(path, types={"zip": pa.int64()})
    narrow = write(tmp_path / "b.parquet", pa.table({"zip": [2**40]}))
    first = write(tmp_path / "c.parquet", pa.table({"zip": pa.array([1], pa.int32())}))
    assert "row 0 holds 1099511627776 (int64), which does not fit int32" in str(refused(first, narrow))


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".arrows", ".csv", ".csv.gz", ".jsonl", ".json"])
def test_a_file_that_adds_a_column_under_strict_or_lacks_a_required_one_is_refused(ending: str, tmp_path: Path) -> None:
    first = write(tmp_path / f"1{ending}", pa.table({"id": [1]}))
    more = write(tmp_path / f"2{ending}", pa.table({"id": [1], "Id": [2]}))
    assert open_files([first, more]).schema.names == ["id", "Id"]
    with raises(SchemaMismatch):
        open_files([first, more], how=FileOptions(strict=True))
    with raises(SchemaMismatch):
        open_files([more, first], how=FileOptions(strict=True))
    with raises(SchemaMismatch):
        open_files([first], required=["key"])


def test_a_type_for_a_column_that_is_not_there_is_told_of_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", pa.table({"amount": [1]}))
    source = open_files([path], types={"amuont": "double"})
    found = "no file has the declared column 'amuont': did you mean 'amount'?"
    assert source.changes.summary == f"{found} the columns are ['amount']"
    with raises(SchemaMismatch):
        open_files([path], types={"amuont": "double"}, how=FileOptions(strict=True))
    for nested in ("list<int>", "struct<a: int>"):
        with raises(SpecError):
            open_files([path], types={"amount": nested})
    with raises(SpecError):
        open_files([write(tmp_path / "a.jsonl", FLAT)], types={"id": pa.month_day_nano_interval()})


def test_a_file_without_columns_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    assert "it has no columns" in refused(tmp_path / "a.parquet")
    assert "it has no columns" in refused(tmp_path / "a.jsonl")


def test_what_is_not_there_or_not_known_is_refused(tmp_path: Path) -> None:
    assert "there is no such file or folder" in refused(tmp_path / "a.csv")
    assert "there is no file in it" in refused(tmp_path)
    (tmp_path / "a.txt").write_text("id\n1\n")
    assert "unknown file type '.txt'; use .parquet, .arrow" in refused(tmp_path / "a.txt")
    with raises(UnreadableInput):
        read(tmp_path)
    (tmp_path / "deep").mkdir()
    assert "it contains folders: ['deep']" in refused(tmp_path)
    with raises(UnreadableInput):
        open_files([])


@pytest.mark.parametrize("ending", KINDS)
def test_a_file_that_may_not_be_read_says_so(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{ending}", FLAT)
    path.chmod(0)
    if os.geteuid() == 0:  # who may read everything is told nothing; a folder in the file's place is as unreadable
        path.unlink()
        path.symlink_to(path)  # a loop
        with pytest.raises(UnreadableInput, match=re.escape(str(path))):
            read(path)
        return
    assert "permission is denied" in refused(path)


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".arrows"])
def test_a_file_that_shrinks_or_goes_while_it_is_read_is_an_error(ending: str, tmp_path: Path) -> None:
    path, table = tmp_path / f"a{ending}", pa.table({"text": [f"{n:050}" for n in range(400_000)]})
    write(path, table)
    if ending == ".parquet":
        pq.write_table(table, path, row_group_size=20_000)
    source = open_files([path])
    batches = source.batches()
    next(batches)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UnreadableInput, match=re.escape(str(path))):
        for _ in batches:
            pass
    path.unlink()
    with raises(UnreadableInput):
        list(source.batches())


def test_a_line_that_is_longer_than_a_block_is_refused(tmp_path: Path) -> None:
    long = '{"id": 2, "note": "' + "x" * (5 << 20) + '"}\n'
    for text, line in (('{"id": 1}\n' + long, 2), (long * 2, 1)):
        (tmp_path / "a.jsonl").write_text(text)
        said = refused(tmp_path / "a.jsonl", types={"note": pa.string()})
        assert said.startswith(f"a.jsonl, line {line}: it is longer than 2,097,152 bytes")


@long_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".arrow"])
def test_a_file_of_very_many_columns_is_refused_at_once(ending: str, tmp_path: Path) -> None:
    path, names = tmp_path / f"a{ending}", [f"c{n}" for n in range(30_000)]
    if ending == ".csv":
        path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    else:
        write(path, pa.table({name: [1] for name in names}))
    began = time.process_time()
    assert "it has 30,000 columns, more than 10,000; turn the columns into rows" in refused(path)
    assert time.process_time() - began < 60  # of JSON some 5 s


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("gs://b/y.csv", "gs://b/y.csv"),
        (Path("gs://b/y.csv"), "gs://b/y.csv"),
        ("S3A://b/y", "S3A://b/y"),
        ("file:///tmp/a.csv", "file:///tmp/a.csv"),
        ("https://KEY:SEC/RET@host/a.csv?token=SECRET", "https://host/a.csv"),
        ("HTTP://host/a.csv", "HTTP://host/a.csv"),
    ],
)
def test_an_address_is_refused_as_such_and_no_secret_repeated(given: Path | str, named: str) -> None:
    with pytest.raises(UnreadableInput) as caught:
        open_files([given])
    web = named.lower().startswith("http")
    said = f"ddflow reads no input from the web; download it first: curl -fLO {named}"
    assert str(caught.value).startswith(
        f"{named}: {said if web else 'inputs are files and folders of this machine, or'}"
    )
    assert "RET" not in str(caught.value)


def test_a_folder_whose_name_has_a_colon_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day:").mkdir()
    write(tmp_path / "day:" / "a.csv", FLAT)
    assert read(Path("day:/a.csv")).num_rows == FLAT.num_rows


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    said = "a.csv: it is not a regular file; pipe its contents to standard input, and pass -"
    assert said in refused(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_file_is_not_closed_under_arrows_thread(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: under load one run in a hundred read a header as '7'.  A reader that was let go of had its file closed
    while Arrow still read ahead, and took the first block of the file that was opened next, under the same number."""
    text = "id\n" + "7\n" * 2_000_000
    (tmp_path / name).write_bytes(gzip.compress(text.encode(), 1) if name.endswith("gz") else text.encode())
    opened: list[Any] = []
    real = TextFile.open_text
    monkeypatch.setattr(TextFile, "open_text", lambda *given, **how: opened.append(real(*given, **how)) or opened[-1])
    given = open_files([tmp_path / name])
    next(iter(given.batches()))  # of several; the reader is let go of in the middle
    assert opened and not any(file.closed for file in opened)
    left = [weakref.ref(file) for file in opened]
    opened.clear()
    gc.collect()
    assert not any(each() for each in left)


def test_a_zone_or_a_decimal_comma_is_named_with_what_to_declare(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,at,price\n1,2026-11-01T03:36:00+01:00,"135,11"\n')
    said = refused(tmp_path / "a.csv", types={"at": pa.timestamp("us")})
    assert said.endswith("declare another type: {'at': 'timestamptz'}"), said
    said = refused(tmp_path / "a.csv", types={"price": pa.float64()})
    assert "'135,11' is not a valid double; pass dd.FilePath('a.csv', decimal=','), fix it, or declare another" in said

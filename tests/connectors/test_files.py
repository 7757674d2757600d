"""Test reading and writing files: all file types read back what was written, support streaming, and give the same rows.

The readers of Arrow and Python also read files that ddflow writes, and ddflow reads files that their writers write. So
the tests find a mistake that the reader and the writer of ddflow share.
"""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import resource
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from messages import raises

from ddflow.columns.casts import parse_type, parse_types
from ddflow.connectors.files import FileOutput, FilePosition, UnwritableOutput, open_files, open_output
from ddflow.connectors.files.kinds import ARRAY, ARROW, CSV, JSON, KINDS, PARQUET, STREAM, TSV, find_kind
from ddflow.connectors.files.reader import ROWS
from ddflow.connectors.files.spelling import is_storable_in_text
from ddflow.errors import OutputExists, SpecError, UnreadableInput

TEXTS = [ending for ending, kind in KINDS.items() if kind.name in (CSV, TSV, JSON, ARRAY)]
NESTING = [ending for ending, kind in KINDS.items() if kind.name not in (CSV, TSV)]

STRUCT = pa.struct([("x", pa.int32()), ("on", pa.date32()), ("parts", pa.list_(pa.struct([("raw", pa.binary())])))])
WHEN = [1_700_000_000_123_456, None, -1]
COLUMNS = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-128, None, 127], pa.int8()),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "float16": pa.array([1.5, None, -0.0], pa.float16()),
    "float32": pa.array([0.1, None, float("inf")], pa.float32()),
    "float64": pa.array([0.1 + 0.2, None, 1e300]),
    "odd": pa.array([float("nan"), None, -float("inf")]),
    "text": pa.array(['say "hi",\\ \n\t\r\x00\x1f', None, ""]),
    "large": pa.array(["é☃😀\u2028", None, "null"], pa.large_string()),
    "binary": pa.array([b"\xff\x00", None, b""]),
    "fixed": pa.array([b"abc", None, b"\x00\x01\x02"], pa.binary(3)),
    "large_binary": pa.array([b"x", None, b""], pa.large_binary()),
    "date32": pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
    "date64": pa.array([dt.date(2024, 1, 1), None, dt.date(1969, 1, 1)], pa.date64()),
    "time32": pa.array([dt.time(1, 2, 3), None, dt.time(23, 59, 59)], pa.time32("s")),
    "time64": pa.array([1, None, 86_399_999_999_999], pa.int64()).cast(pa.time64("ns")),
    "stamp_s": pa.array([1, None, -1], pa.int64()).cast(pa.timestamp("s")),
    "stamp_us": pa.array(WHEN, pa.int64()).cast(pa.timestamp("us")),
    "stamp_ns": pa.array(WHEN, pa.int64()).cast(pa.timestamp("ns")),
    "zoned": pa.array(WHEN, pa.int64()).cast(pa.timestamp("us", "Europe/Zurich")),
    "span": pa.array([1, None, -5], pa.int64()).cast(pa.duration("us")),
    "decimal": pa.array([Decimal("0.00000001"), None, Decimal("-1.5")], pa.decimal128(20, 8)),
    "wide": pa.array([Decimal("0.01"), None, Decimal("-" + "9" * 40)], pa.decimal256(50, 2)),
    "nothing": pa.nulls(3),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "large_list": pa.array([["a"], None, []], pa.large_list(pa.string())),
    "pair": pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int32(), 2)),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    "struct": pa.array([{"x": 1, "on": dt.date(1, 1, 1), "parts": [{"raw": b"\1"}]}, None, {"parts": [None]}], STRUCT),
}
EVERY = pa.table(COLUMNS)


def write(path: Path, table: pa.Table, pieces: int = 1) -> Path:
    with open_output(path, table.schema) as out:
        step = max(1, -(-table.num_rows // pieces))
        for start in range(0, max(table.num_rows, 1), step):
            out.write(table.slice(start, step))
    return path


def read(*paths: Path, types: dict[str, pa.DataType] | None = None) -> pa.Table:
    source = open_files(paths, types)
    batches = [batch for batch, _ in source.batches()]
    return pa.Table.from_batches(batches, source.schema)


def same(one: pa.Table, other: pa.Table) -> bool:
    """Equal schemas and values; not a number equals itself, and -0.0 is not 0.0."""
    return one.schema.equals(other.schema) and repr(one.to_pylist()) == repr(other.to_pylist())


def as_parquet(schema: pa.Schema) -> pa.Schema:
    """Parquet has no seconds, and one kind of date."""
    finer = {"date64": pa.date32(), "time32": pa.time32("ms"), "stamp_s": pa.timestamp("ms")}
    return pa.schema([(field.name, finer.get(field.name, field.type)) for field in schema])


@pytest.mark.parametrize("ending", KINDS)
def test_every_type_comes_back_as_it_was_written(ending: str, tmp_path: Path) -> None:
    kind = find_kind(Path(f"a{ending}"))
    names = [
        name for name in EVERY.column_names if ending not in TEXTS or is_storable_in_text(EVERY[name].type, kind.name)
    ]
    nested = {"list", "large_list", "pair", "map", "struct"}
    assert set(EVERY.column_names) - set(names) == (set() if ending in NESTING else nested)
    whole = EVERY.select(names)
    sliced = pa.concat_tables([whole, whole]).combine_chunks().slice(1, 4)  # buffers that do not begin at row 0
    for number, table in enumerate((whole, sliced, whole.schema.empty_table())):
        path = write(tmp_path / f"{number}{ending}", table, pieces=2)
        declared = dict(zip(table.schema.names, table.schema.types, strict=True))
        if kind.name in (JSON, ARRAY) and not table.num_rows:
            continue  # without an object there are no columns
        back = read(path, types=declared if ending in TEXTS else None)
        assert same(back, table.cast(as_parquet(table.schema)) if kind.name == PARQUET else table), ending


@pytest.mark.parametrize("ending", TEXTS)
def test_types_that_text_shows_are_guessed(ending: str, tmp_path: Path) -> None:
    shown = ["bool", "text", "date32", "stamp_us"]
    table = EVERY.select(shown).append_column("int64", pa.array([1, None, -(2**63)]))
    table = table.append_column("float64", pa.array([0.3, None, 1e300]))
    assert same(read(write(tmp_path / f"a{ending}", table)), table)


def test_csv_can_be_read_by_python_and_json_lines_too(tmp_path: Path) -> None:
    table = EVERY.select(["text", "int8", "zoned", "binary"])
    with open(write(tmp_path / "a.csv", table), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "text": EVERY["text"][0].as_py(),
        "int8": "-128",
        "zoned": "2023-11-14 22:13:20.123456Z",
        "binary": "/wA=",
    }
    lines = write(tmp_path / "a.jsonl", EVERY).read_text(encoding="utf-8").split("\n")[:-1]
    first, second, third = (json.loads(line) for line in lines)
    assert list(first) == EVERY.column_names
    assert (first["text"], first["large"], first["uint64"]) == (EVERY["text"][0].as_py(), "é☃😀\u2028", 2**64 - 1)
    assert (first["decimal"], first["binary"], first["span"]) == ("1E-8", "/wA=", 1)
    assert first["struct"] == {"x": 1, "on": "0001-01-01", "parts": [{"raw": "AQ=="}]}
    assert first["map"] == [{"key": "a", "value": 1}]
    assert set(second.values()) == {None}
    assert (third["odd"], third["list"], third["float64"]) == (-float("inf"), [], 1e300)


def test_what_python_writes_can_be_read(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "city": 'Zü"rich\nS', "amount": 1.5, "tags": ["a", "b"], "at": "2024-01-01T10:00:00"},
        {"id": 2, "city": None, "amount": 3, "tags": [], "at": "2024-01-01T10:00:00.5"},
    ]
    with gzip.open(tmp_path / "a.ndjson.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=number > 0) + "\n\n" for number, row in enumerate(rows))
    table = read(tmp_path / "a.ndjson.gz")
    assert table.schema.types == [pa.int64(), pa.string(), pa.float64(), pa.list_(pa.string()), pa.timestamp("us")]
    assert table["city"].to_pylist() == ['Zü"rich\nS', None]
    with open(tmp_path / "b.csv", "w", encoding="utf-8-sig", newline="") as file:
        out = csv.DictWriter(file, ["id", "city", "amount", "at"], extrasaction="ignore", quoting=csv.QUOTE_ALL)
        out.writeheader()
        out.writerows(rows[:1])
    assert read(tmp_path / "b.csv").equals(table.drop_columns(["tags"]).slice(0, 1))


def test_what_other_writers_of_arrow_and_parquet_make_can_be_read(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "city": pa.array(["Bern", None]).dictionary_encode()})
    plain = table.set_column(1, "city", table["city"].cast(pa.string()))
    pa.feather.write_feather(table, tmp_path / "1.feather", compression="zstd")
    with pa.ipc.new_stream(str(tmp_path / "2.arrow"), table.schema) as stream:  # a stream, by its content
        stream.write_table(table)
    required = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata={"a": "b"}), ("city", pa.large_string())])
    pq.write_table(plain.cast(required), tmp_path / "3.parquet")
    assert read(tmp_path).equals(pa.concat_tables([plain] * 3))
    assert read(tmp_path / "3.parquet").schema.equals(
        pa.schema([("id", pa.int64()), ("city", pa.large_string())]), check_metadata=True
    )


def test_files_of_all_kinds_are_one_input(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2]), "city": ["Bern", None], "at": pa.array([0, 1]).cast(pa.timestamp("us"))})
    files = [write(tmp_path / f"{number:02}{ending}", table) for number, ending in enumerate(KINDS)]
    assert read(*files).equals(pa.concat_tables([table] * len(files)))
    assert read(*reversed(files)).num_rows == 2 * len(files)


def test_a_folder_is_its_files_by_name_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.jsonl"):
        write(tmp_path / name, pa.table({"from": [name]}))
    for hidden in ("_SUCCESS", ".part-0.crc"):
        (tmp_path / hidden).write_text("")
    source = open_files([tmp_path])
    assert [Path(file).name for file in source.files] == ["a.csv", "b.csv", "c.jsonl"]
    assert read(tmp_path / "b.csv", tmp_path)["from"].to_pylist() == ["b.csv", "a.csv", "b.csv", "c.jsonl"]


@pytest.mark.parametrize("text", ["id,city", "id,city\n", "id,city\r\n"])
def test_a_header_alone_is_a_file_without_rows(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    (tmp_path / "b.csv").write_text("id,city\r1,Bern", newline="")
    assert (read(tmp_path / "a.csv").num_rows, read(tmp_path / "b.csv").to_pylist()) == (0, [{"id": 1, "city": "Bern"}])


def test_a_missing_column_is_null_and_a_narrower_type_is_widened(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", pa.table({"id": [1], "city": ["Bern"], "n": [1.5]}))
    write(tmp_path / "2.parquet", pa.table({"city": ["Basel"], "id": pa.array([2], pa.int8())}))
    (tmp_path / "3.csv").write_text("n,id\n2,3\n")
    (tmp_path / "4.jsonl").write_text('{"id": 4}\n')
    assert read(tmp_path).to_pylist() == [
        {"id": 1, "city": "Bern", "n": 1.5},
        {"id": 2, "city": "Basel", "n": None},
        {"id": 3, "city": None, "n": 2.0},
        {"id": 4, "city": None, "n": None},
    ]


def test_declared_types_hold_for_every_kind_of_file(tmp_path: Path) -> None:
    table = pa.table({"at": ["2024-01-01 10:00:00"], "total": ["12.50"]})
    declared = parse_types(["at=timestamp[s], total=decimal(10,2)"])
    for ending in KINDS:
        back = read(write(tmp_path / f"a{ending}", table), types=declared)
        assert back.to_pylist() == [{"at": dt.datetime(2024, 1, 1, 10), "total": Decimal("12.50")}], ending
        assert back.schema.types == list(declared.values()), ending


def test_a_declared_type_may_name_a_column_that_json_lines_show_later(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": 2, "note": "x"}\n')
    source = open_files([tmp_path / "a.jsonl"], types={"more": "int8"})
    assert (source.schema.names, source.changes.summary) == (
        ["id", "note"],
        "no file has the declared column 'more': the columns are ['id', 'note']",
    )
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n' * 300_000 + '{"id": 2, "more": 3}\n')  # beyond what is looked at
    assert read(tmp_path / "a.jsonl", types={"more": pa.int8()})["more"].to_pylist()[-2:] == [None, 3]


def test_columns_stay_in_the_order_of_the_file_when_some_are_declared(tmp_path: Path) -> None:
    for ending in KINDS:
        path = write(tmp_path / f"a{ending}", pa.table({"a": [1], "b": [2], "c": [3]}))
        assert read(path, types={"c": pa.int64(), "b": pa.float64()}).schema.names == ["a", "b", "c"], ending


GUESSES = {
    "int64": ["1", "-7", "0", str(2**63 - 1)],
    "uint64": ["1", str(2**63)],
    "decimal128(38, 0)": ["-1", str(2**64)],
    "decimal128(38, 1)": ["-1", str(2**63) + ".5"],
    "decimal128(38, 17)": ["0.30000000000000004", "2.5"],
    "double": ["1", "2.5", "-1e3", ".5", "1.", "-0", "nan", "-inf", "1e300", "0.00000000000000000", "123456789012.345"],
    "bool": ["true", "False", "TRUE"],
    "date32[day]": ["2024-02-29"],
    "time64[us]": ["12:00:00", "23:59:59.999999"],
    "timestamp[us]": ["2024-02-29", "2024-02-29 12:00:00", "2024-02-29T12:00", "2024-02-29 12:00:00.123456"],
    "timestamp[ns]": ["2024-02-29 12:00:00.1234567"],
    "timestamp[us, tz=UTC]": ["2024-02-29 12:00:00Z", "2024-02-29T12:00:00.5+01:00", "2024-02-29T12:00:00-0330"],
    "string": ["x"],
}


@pytest.mark.parametrize("kind", GUESSES)
def test_a_csv_column_is_of_the_narrowest_type_that_all_its_values_have(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f"{text},\n,\n" for text in GUESSES[kind]))
    assert [str(t) for t in open_files([path]).schema.types] == [kind, "string"]
    assert read(path)["a"].null_count == len(GUESSES[kind])
    for text in GUESSES[kind][-1:] if kind != "decimal128(38, 17)" else ():  # the last one alone is enough
        path.write_text(f"a\n{text}\n")
        assert str(open_files([path]).schema.types[0]) == kind


@pytest.mark.parametrize(
    "code",
    [
        "007",
        "+1",
        "0x10",
        " 1",
        "1 ",
        "1_000",
        "1,000",
        "2024-02-30",
        "25:00:00",
        "NA",
        "-",
        "1e400",
        "1e-400",
        "0.30000000000000004e1",
        "1" * 39,
    ],
)
def test_what_only_resembles_a_number_or_a_date_stays_text(code: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'a,b\n1,2024-01-01\n"{code}","{code}"\n')
    table = read(tmp_path / "a.csv")
    assert table.schema.types == [pa.string(), pa.string()]
    assert table["a"].to_pylist() == ["1", code]


def test_keys_too_large_for_int64_keep_all_their_digits(tmp_path: Path) -> None:
    keys = [2**64 - 1, 2**64 - 2]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"u": {key}, "d": {key * 10}, "f": {key}.5}}\n' for key in keys))
    table = read(tmp_path / "a.jsonl")
    assert table.schema.types == [pa.uint64(), pa.decimal128(38, 0), pa.decimal128(38, 1)]
    assert (table["u"].to_pylist(), table["d"].to_pylist()) == (keys, [Decimal(key * 10) for key in keys])


def test_an_empty_field_is_null_and_quotes_make_it_the_empty_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n,1\n"",\nNULL,2\n')
    assert read(tmp_path / "a.csv").to_pylist() == [
        {"a": None, "b": 1},
        {"a": "", "b": None},
        {"a": "NULL", "b": 2},
    ]


@pytest.mark.parametrize("text", ["a\n", "a,b\r\n", "\ufeffa\n"])
def test_a_csv_of_a_header_alone_has_no_rows(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    table = read(tmp_path / "a.csv")
    assert (table.schema.names[0], table.num_rows) == ("a", 0)


@pytest.mark.parametrize("text", ['a,b\n5" pipe,1\n', 'a,b\n"5"" pipe",1\n"x\ny",2\n'])
def test_quotes_that_close_or_stand_within_a_field_are_no_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert read(tmp_path / "a.csv")["a"][0].as_py() == '5" pipe'


def test_rows_are_known_beforehand_where_the_format_tells(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3]})
    files = {ending: write(tmp_path / f"a{ending}", table) for ending in KINDS}
    known = {ending: open_files([file]).rows for ending, file in files.items()}
    assert {ending for ending, rows in known.items() if rows is None} == {*TEXTS, ".arrows"}
    assert {rows for rows in known.values() if rows is not None} == {3}
    assert open_files([files[".parquet"], files[".arrow"]]).rows == 6
    assert open_files([files[".parquet"], files[".csv"]]).rows is None


@pytest.mark.drawn(1)
@pytest.mark.parametrize("ending", {(kind.name, bool(kind.wrapped)): end for end, kind in KINDS.items()}.values())
def test_reading_and_writing_hold_a_few_batches_in_memory(ending: str, tmp_path: Path) -> None:
    piece = pa.table({"id": pa.array(range(100_000)), "text": [f"{n:0100}" for n in range(100_000)]})
    before, highest = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    with open_output(tmp_path / f"a{ending}", piece.schema) as out:
        for _ in range(9):  # 98 MB
            out.write(piece)
    source = open_files([tmp_path / f"a{ending}"])
    rows = 0
    for batch, _ in source.batches():
        assert ending in TEXTS or batch.num_rows <= ROWS
        rows += batch.num_rows
        highest = max(highest, pa.total_allocated_bytes() - before)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 900_000
    assert highest + python < 150e6, (highest, python)


def test_small_tables_are_gathered_into_row_groups(tmp_path: Path) -> None:
    piece = pa.table({"id": range(100)})
    for ending, groups in ((".parquet", 1), (".arrow", 1)):
        path = write(tmp_path / f"a{ending}", pa.concat_tables([piece] * 50), pieces=50)
        found = (
            pq.ParquetFile(path).num_row_groups if ending == ".parquet" else pa.ipc.open_file(path).num_record_batches
        )
        assert found == groups
        assert read(path)["id"].to_pylist() == [*range(100)] * 50


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail(out: FileOutput) -> None:
    out.write(pa.table({"id": [1]}))
    raise KeyboardInterrupt


@pytest.mark.parametrize("ending", KINDS)
def test_an_output_is_there_only_when_it_is_whole(ending: str, tmp_path: Path) -> None:
    path, schema = tmp_path / f"a{ending}", pa.schema({"id": pa.int64()})
    with pytest.raises(KeyboardInterrupt), open_output(path, schema) as out:
        fail(out)
    assert parts(tmp_path) == []
    with open_output(path, schema) as out:
        out.write(pa.table({"id": [1]}))
        assert not path.exists()
    assert (parts(tmp_path), out.written) == ([path.name], 1)
    with pytest.raises(KeyboardInterrupt), open_output(path, schema, overwrite=True) as out:
        fail(out)
    assert read(path)["id"].to_pylist() == [1]
    with open_output(path, schema, overwrite=True) as out:
        out.write(pa.table({"id": [2, 3]}))
    assert (parts(tmp_path), read(path)["id"].to_pylist()) == ([path.name], [2, 3])


def test_an_output_that_exists_is_refused_even_if_it_came_up_meanwhile(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.csv", pa.schema({"id": pa.int64()})
    with raises(OutputExists), open_output(path, schema):
        path.write_text("theirs")
    assert (parts(tmp_path), path.read_text()) == (["a.csv"], "theirs")
    with pytest.raises(OutputExists):
        open_output(path, schema)


def test_an_output_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "in.csv").mkdir()
    schema = pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string()), "gap": pa.month_day_nano_interval()})
    for name, which in (
        ("a.csv", ["tags"]),
        ("a.jsonl", ["gap"]),
        ("a.parquet", ["gap"]),
        ("no/a.csv", ["id"]),
        ("a.xls", ["id"]),
        ("plain", ["id"]),
        ("in.csv", ["id"]),
    ):
        with raises(UnwritableOutput):
            open_output(tmp_path / name, pa.schema([schema.field(n) for n in which])).__enter__()
    assert parts(tmp_path) == ["in.csv"]


@pytest.mark.parametrize("ending", KINDS)
def test_a_disk_that_takes_no_more_is_an_error_and_leaves_nothing(ending: str, tmp_path: Path) -> None:
    table = pa.table({"noise": np.random.default_rng(7).random(30_000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with raises(UnwritableOutput):
            write(tmp_path / f"a{ending}", table)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert parts(tmp_path) == []


@pytest.mark.parametrize("kind", [table.type for table in COLUMNS.values()], ids=str)
def test_a_type_in_arrows_own_spelling_is_that_type(kind: pa.DataType) -> None:
    if kind != pa.null():
        assert parse_type(str(kind)) == kind


@pytest.mark.parametrize(
    "text",
    [
        "strin",
        "decimal(99,2)",
        "list<a,b>",
        "struct<a>",
        "",
    ],
)
def test_a_type_that_is_none_is_refused(text: str) -> None:
    with raises(SpecError):
        parse_type(text)


@pytest.mark.parametrize("texts", [["a"], ["=int"], ["a=int,a=long"], ["a=int", "a=int"]])
def test_declared_types_that_make_no_sense_are_refused(texts: list[str]) -> None:
    with pytest.raises(SpecError):
        parse_types(texts)


VALUES: dict[str, Callable[[], st.SearchStrategy[object]]] = {
    "text": lambda: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "float": lambda: st.floats(),
    "whole": lambda: st.integers(-(2**63), 2**63 - 1),
    "bytes": lambda: st.binary(max_size=5),
    "moment": lambda: st.datetimes(),
    "digits": lambda: st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9),
}
KINDS_OF = {
    "text": pa.string(),
    "float": pa.float64(),
    "whole": pa.int64(),
    "bytes": pa.binary(),
    "moment": pa.timestamp("us"),
    "digits": pa.decimal128(20, 3),
}


@given(rows=st.lists(st.fixed_dictionaries({name: st.none() | make() for name, make in VALUES.items()}), min_size=1))
def test_any_values_survive_text(rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory) -> None:
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(KINDS_OF.items())))
    folder = tmp_path_factory.mktemp("any")
    for ending in (".csv", ".jsonl"):
        back = read(write(folder / f"a{ending}", table, pieces=2), types=KINDS_OF)
        assert same(back, table), ending


@pytest.mark.drawn(5)
@pytest.mark.parametrize("ending", {kind: ending for ending, kind in KINDS.items()}.values())
def test_reading_goes_on_after_any_position(ending: str, tmp_path: Path) -> None:
    """Whatever was taken before, in files of several batches, of one and of none: each row comes once."""
    sizes = {"a": 2 * ROWS + 5, "b": int("json" in ending), "c": 3}  # JSON lines of no row are refused
    for name, rows in sizes.items():
        table = pa.table({"id": pa.array(range(rows), pa.int64()), "file": pa.array([name] * rows, pa.string())})
        write(tmp_path / f"{name}{ending}", table, pieces=2)
    with closing(open_files([tmp_path], types={"id": "int64", "file": "string"})) as source:
        read = [*source.batches()]
        expected = [row for batch, _ in read for row in batch.to_pylist()]
        assert len(expected) == sum(sizes.values())
        assert [Path(at.file).name[0] for _, at in read if at.finished] == [*sizes]
        first = source.files[0]
        places = [at for _, at in read] + [FilePosition(first, rows) for rows in (0, 1, ROWS, 2 * ROWS + 4)]
        for at in places:
            gone = sum(n for name, n in sizes.items() if name < Path(at.file).name[0]) + at.rows
            rest = [row for batch, _ in source.batches(after=at) for row in batch.to_pylist()]
            assert rest == expected[gone:], at
        with raises(UnreadableInput):
            next(source.batches(after=FilePosition(str(tmp_path / "z.csv"))))


def test_nested_lists_of_any_depth_survive_json(tmp_path: Path) -> None:
    kind = pa.list_(pa.large_list(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.date32())))])))
    column = pa.array([[[{"m": [("a", [dt.date(2024, 1, 1), None])]}, None], None, []], None], kind)
    table = pa.concat_tables([pa.table({"a": column})] * 2).combine_chunks().slice(1, 3)
    assert same(read(write(tmp_path / "a.jsonl", table), types={"a": kind}), table)


def test_an_input_can_be_read_twice_and_rows_can_be_piped(tmp_path: Path) -> None:
    from ddflow.connectors.files.writers import open_writer

    source = open_files([write(tmp_path / "a.csv", pa.table({"id": [1, 2]}))])
    assert [*source.batches()] == [*source.batches()]
    for name, text in ((JSON, b'{"id":1}\n'), (CSV, b'"id"\n1\n')):
        lines = open_writer(out := io.BytesIO(), find_kind(Path("a.jsonl"))._replace(name=name), source.schema)
        lines.write(pa.table({"id": [1]}))
        lines.close()
        assert out.getvalue() == text
    assert {PARQUET, ARROW, STREAM} <= {kind.name for kind in KINDS.values()}

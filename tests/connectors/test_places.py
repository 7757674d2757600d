"""Test input from patterns of paths, standard input and objects in S3, and text in unusual formats."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from chance import mid_test
from hypothesis import given, strategies as st
from messages import raises
from programs import PIPE, Program
from s3_server import Moto, Proxy, moto, options, proxy
from test_files import read, write

from ddflow.columns.wider import suggest_evolve_call
from ddflow.connectors.files import FileOptions, open_files
from ddflow.connectors.files.guess import SAMPLE
from ddflow.connectors.files.json_reader import JsonArraySplitter, compute_bracket_depths
from ddflow.connectors.files.kinds import Dialect, find_kind, find_kind_by_extension
from ddflow.errors import MissingExtra, SchemaMismatch, SpecError, UnreadableInput

__all__ = ["moto", "proxy"]

TABLE = pa.table({"id": pa.array(range(1000)), "city": [f"c{n}" for n in range(1000)]})


def rows(*paths: Any, **how: Any) -> list[dict[str, Any]]:
    source = open_files([str(path) for path in paths], how=FileOptions(**how))
    return [row for batch, _ in source.batches() for row in batch.to_pylist()]


# Patterns.


def test_a_pattern_is_the_files_that_match_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.csv", "a/1.csv", "a/_tmp.csv", "a/.hidden.csv", "a/3.txt", "[x].csv"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(f"id\n{len(name)}\n")
    assert open_files(["*/*.csv"]).files == ["a/1.csv", "b/2.csv"]
    assert open_files(["**/[12].csv"]).files == ["a/1.csv", "b/2.csv"]
    assert open_files(["a/_*.csv"]).files == ["a/_tmp.csv"]  # who writes the mark means it
    assert open_files(["[x].csv"]).files == ["[x].csv"]  # a file of that very name
    assert open_files(["b*"]).files == ["b/2.csv"]  # a folder that matches
    with raises(UnreadableInput):
        open_files(["c/*.csv"])
    with raises(UnreadableInput):
        open_files(["a/*"])


# Standard input.


def piped(data: bytes, monkeypatch: pytest.MonkeyPatch, **how: Any) -> list[dict[str, Any]]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))  # type: ignore[arg-type]
    return rows("-", **how)


@pytest.mark.parametrize(
    "ending", [".csv", ".csv.gz", ".tsv", ".tsv.zst", ".jsonl", ".json", ".json.gz", ".parquet", ".arrow", ".arrows"]
)
@pytest.mark.parametrize("told", [False, True])
def test_standard_input_is_of_the_kind_that_is_told_or_that_it_looks_like(
    ending: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / f"a{ending}", TABLE).read_bytes()
    kind = find_kind_by_extension(ending) if told else None
    assert piped(data, monkeypatch, dialect=Dialect(kind=kind)) == TABLE.to_pylist()
    with raises(UnreadableInput):
        piped(b"", monkeypatch, dialect=Dialect(kind=kind))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".json"])
def test_standard_input_of_any_length_is_streamed(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"id": range(200_000), "text": [f"{n:050}" for n in range(200_000)]})  # more than is kept
    data = write(tmp_path / f"a{ending}", table).read_bytes()
    assert len(data) > 5 * SAMPLE
    assert [row["id"] for row in piped(data, monkeypatch)] == list(range(200_000))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
    source = open_files(["-"])
    list(source.batches())
    with raises(UnreadableInput):
        list(source.batches())


def test_standard_input_is_read_as_it_comes() -> None:
    """Rows come out before the input ends: what was kept for its head is all that is waited for."""
    program = (
        "from ddflow.connectors.files import open_files\n"
        "for batch, at in open_files(['-']).batches(): print(batch.num_rows, flush=True)"
    )
    process = Program(program, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("id,text\n" + f"1,{'x' * 90}\n" * 100_000)
    process.stdin.flush()
    assert int(process.stdout.readline()) > 10_000
    process.communicate()
    assert process.returncode == 0


# How text is written.


def test_delimiters_nulls_and_encodings_are_as_they_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('id;city;n\n1;Zürich;NA\n2;"NA";-\n3;;7\n'.encode("cp1252"))
    dialect = Dialect(";", ("NA", "-"), "cp1252")
    assert rows(tmp_path / "a.csv", dialect=dialect) == [
        {"id": 1, "city": "Zürich", "n": None},
        {"id": 2, "city": "NA", "n": None},
        {"id": 3, "city": None, "n": 7},
    ]
    (tmp_path / "b.csv").write_bytes("id\tcity\n1\tZürich, ZH\n".encode("utf-16"))
    for tab in ("\t", r"\t", "tab"):
        assert rows(tmp_path / "b.csv", dialect=Dialect(tab, (), "utf-16")) == [{"id": 1, "city": "Zürich, ZH"}]
    (tmp_path / "c.jsonl").write_bytes('{"id": 1, "city": "Zürich"}\n'.encode("latin-1"))
    assert rows(tmp_path / "c.jsonl", dialect=Dialect(encoding="latin-1")) == [{"id": 1, "city": "Zürich"}]
    with raises(UnreadableInput):
        rows(tmp_path / "a.csv", dialect=Dialect(";"))
    (tmp_path / "d.csv").write_bytes(b"id\n\x81\n")
    with raises(UnreadableInput):
        rows(tmp_path / "d.csv", dialect=dialect)


@pytest.mark.parametrize(
    "dialect",
    [
        Dialect(";;"),
        Dialect('"'),
        Dialect("é"),
        Dialect(encoding="utf-9"),
    ],
)
def test_a_dialect_that_no_reader_takes_is_refused(dialect: Dialect, tmp_path: Path) -> None:
    with raises(SpecError):
        open_files([write(tmp_path / "a.csv", TABLE)], how=FileOptions(dialect=dialect))
    with raises(SpecError):
        find_kind_by_extension("xls")


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_a_delimiter_that_is_another_is_recognised(between: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id{between}v\n1{between}2\n")
    shown = r"\t" if between == "\t" else between
    with pytest.raises(SchemaMismatch) as caught:
        open_files([tmp_path / "a.csv"], required=["id"])
    assert f"the header is one column, {f'id{between}v'!r}; is the delimiter '{shown}'? pass dd.FilePath(" in str(
        caught.value
    )
    assert f"a.csv', delimiter='{shown}')" in str(caught.value)
    assert rows(tmp_path / "a.csv", dialect=Dialect(shown)) == [{"id": 1, "v": 2}]


CONFLICT = "<<<<<<< HEAD\n{0}\n=======\n{1}\n>>>>>>> feed\n"


@pytest.mark.parametrize("name", ["a.csv", "one.csv", "head.csv", "a.tsv", "a.jsonl"])
def test_conflict_markers_of_git_are_recognised(name: str, tmp_path: Path) -> None:
    texts = {
        "a.csv": "id,v\n1,2\n" + CONFLICT.format("3,4", "3,5"),
        "one.csv": "id\n1\n" + CONFLICT.format("3", "4"),
        "head.csv": CONFLICT.format("id,v", "id,w") + "1,2\n",
        "a.tsv": "id\tv\n1\t2\n" + CONFLICT.format("3\t4", "3\t5"),
        "a.jsonl": '{"id": 1}\n' + CONFLICT.format('{"id": 2}', '{"id": 3}'),
    }
    (tmp_path / name).write_text(texts[name])
    with raises(UnreadableInput):
        read(tmp_path / name)
    (tmp_path / "text.csv").write_text('id,v\n1,"<<<<<<< HEAD\n=======\n"\n')  # within quotes it is a text like others
    assert read(tmp_path / "text.csv")["v"].to_pylist() == ["<<<<<<< HEAD\n=======\n"]


QUOTED = st.text('a",\n', max_size=6)


@given(values=st.lists(st.tuples(QUOTED, QUOTED), min_size=1, max_size=4), closed=st.booleans(), ends=st.booleans())
def test_an_unclosed_quote_is_found_and_no_closed_one_is(
    values: list[tuple[str, str]], closed: bool, ends: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("quotes") / "a.csv"
    escaped = [tuple(value.replace('"', '""') for value in row) for row in values]
    text = "k,v\n" + "\n".join(f'"{k}","{v}"' for k, v in escaped)
    whole = text + "\n" if ends else text
    path.write_text(whole if closed else text[:-1] + ("\n" if ends else ""))
    if closed:
        assert [
            (row["k"], row["v"]) for row in read(path, types={"k": pa.string(), "v": pa.string()}).to_pylist()
        ] == values
        return
    with pytest.raises(UnreadableInput, match=r"a quote opened there is never closed|Expected 2 columns"):
        read(path, types={"k": pa.string(), "v": pa.string()})


# JSON of one array, and what JSON lines hold.

ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b", "ü"]),
        st.none() | st.integers(-(10**30), 10**30) | st.text('x"\\[]{},\n é', max_size=6) | st.booleans(),
        max_size=3,
    ),
    max_size=5,
)


@given(ROWS, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 40))
def test_an_array_is_the_lines_of_its_elements_wherever_it_is_cut(
    given_rows: list[dict[str, Any]], indent: int | None, ascii_only: bool, size: int
) -> None:
    text = json.dumps(given_rows, indent=indent, ensure_ascii=ascii_only).encode()
    elements = JsonArraySplitter("a.json")
    lines = b"".join(elements.to_lines(text[at : at + size]) for at in range(0, len(text), size)) + elements.finish()
    assert [json.loads(line) for line in lines.splitlines() if line.strip()] == given_rows


@pytest.mark.parametrize("text", ['[{"a": 1}', '[{"a": 1}]]', '{"a": 1}]', '[{"a": "', "[1], [2]", "[[{]}", "", "[] x"])
def test_what_is_no_array_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text or " ")
    with raises(UnreadableInput):
        read(tmp_path / "a.json")


def test_depths_count_no_bracket_within_quotes() -> None:
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choices(["[", "]", "{", "}", '"a"', '"]"', r'"\""', r'"[\\"', r'"\\\"{"'], k=9))
        depth, quoted, escaped, found = 0, False, False, []
        for letter in text:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == '"':
                quoted = not quoted
            elif not quoted:
                depth += (letter in "[{") - (letter in "]}")
            found.append(depth)
        assert compute_bracket_depths(text.encode())[0].tolist() == found, text


def test_scalars_under_a_text_type_are_the_text_in_the_file(tmp_path: Path) -> None:
    values = ["1.10", "-0", "1E5", str(10**40), "true", '"x"', '"1.10"', "null", "0.30000000000000004", "NaN"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {n}, "v": {text}}}\n' for n, text in enumerate(values)))
    meant = [None if text == "null" else text.strip('"') for text in values]
    assert read(path)["v"].to_pylist() == meant  # numbers and texts: the guess is text
    assert read(path, types={"v": pa.string()})["v"].to_pylist() == meant
    path.write_text('{"v": [1]}\n')
    with raises(SchemaMismatch):
        read(path, types={"v": pa.string()})


@pytest.mark.parametrize("text", ['"null"', '"{\\"x\\": 1}"', '"[1]"', "1"])
def test_a_text_that_looks_like_an_object_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for good, kind in (('{"x": 2}', pa.struct([("x", pa.int64())])), ("[2]", pa.list_(pa.int64()))):
        path.write_text(f'{{"v": {good}}}\n{{"v": null}}\n{{"v": {text}}}\n')
        with raises(SchemaMismatch):
            read(path, types={"v": kind})
        with raises(SchemaMismatch):
            read(path)


def test_a_column_that_goes_from_number_to_text_says_what_to_type(tmp_path: Path) -> None:
    """pge-outages' F_OUTAGE_ID, far into the file: what is said is typed, and the file is read."""
    path, before = tmp_path / "a.jsonl", 200_000
    path.write_text('{"F_OUTAGE_ID": 12}\n' * before + '{"F_OUTAGE_ID": "A-7"}\n')
    with pytest.raises(SchemaMismatch) as caught:
        read(path)
    said = "line 200,001, column 'F_OUTAGE_ID': \"A-7\" does not fit the guessed type int64"
    assert said in str(caught.value)
    assert str(caught.value).endswith("declare the type that fits: {'F_OUTAGE_ID': 'string'}")
    assert set(read(path, types={"F_OUTAGE_ID": pa.string()})["F_OUTAGE_ID"].to_pylist()) == {"12", "A-7"}
    known = pa.schema({"F_OUTAGE_ID": pa.int64()})
    source = open_files([path], known=known, how=FileOptions(retype=suggest_evolve_call))
    with raises(SchemaMismatch):
        list(source.batches())


def test_a_member_that_is_there_twice_or_that_no_column_has_is_found_by_counting(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = '{"id": 1, "näme, \\"x\\"": "y"}\n{"n\\u00e4me, \\"x\\"": NaN, "id": Infinity}\n\n {}\n'
    path.write_text(good, encoding="utf-8")
    assert read(path)['näme, "x"'].to_pylist() == ["y", "NaN", None]
    assert read(path)["id"].to_pylist() == [1.0, float("inf"), None]
    path.write_text(good + '{"id": 1, "id": 1}\n', encoding="utf-8")
    with raises(UnreadableInput):
        read(path)


# Objects in S3.


@pytest.fixture
def bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (("AWS_ENDPOINT_URL", moto.url), ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key")):
        monkeypatch.setenv(name, value)
    return moto.bucket()


def put(moto: Moto, bucket: str, key: str, data: bytes) -> None:
    config = options(moto.url)
    config.pop("retry_config")
    store = obstore.store.from_url(f"s3://{bucket}", config=config, client_options={"allow_http": True})
    obstore.put(store, key, data)


@mid_test
def test_objects_are_read_as_files_are(moto: Moto, bucket: str, tmp_path: Path) -> None:
    table = pa.table({"id": range(80_000), "text": [f"{n:050}" for n in range(80_000)]})  # several pieces
    for ending in (".csv", ".jsonl.gz", ".tsv.zst", ".json", ".parquet", ".arrow", ".arrows"):
        put(moto, bucket, f"in/days/a{ending}", write(tmp_path / f"a{ending}", table).read_bytes())
        assert rows(f"s3://{bucket}/in/days/a{ending}") == table.to_pylist(), ending


def test_objects_are_listed_as_files_are(moto: Moto, bucket: str) -> None:
    for key in ("days/2.csv", "days/1.csv", "days/_x.csv", "more/3.csv", "more/deep/4.csv", "5.csv"):
        put(moto, bucket, key, b"id\n1\n")
    whole = f"s3://{bucket}"
    assert open_files([f"{whole}/days"]).files == open_files([f"{whole}/days/"]).files
    assert open_files([f"{whole}/days"]).files == [f"{whole}/days/1.csv", f"{whole}/days/2.csv"]
    assert open_files([f"{whole}/*/*.csv", f"{whole}/5.csv"]).files == [
        *(f"{whole}/{key}" for key in ("days/1.csv", "days/2.csv", "more/3.csv", "5.csv")),
    ]
    for key in (
        "more",
        "none.csv",
        "none/*.csv",
    ):
        with raises(UnreadableInput):
            open_files([f"{whole}/{key}"])


def test_a_bucket_that_fails_is_an_error_that_repeats_no_secret(
    moto: Moto, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(moto, bucket, "a.csv", b"id\n1\n")
    with raises(UnreadableInput):
        open_files(["s3://nosuchbucket/a.csv"])
    with pytest.raises(UnreadableInput) as caught:
        open_files([f"s3://KEY:SECRET@{bucket}/a.csv?token=TOKEN"])
    assert not {"KEY:", "SECRET", "TOKEN"} & set(str(caught.value).replace("/", " ").split())
    assert "SECRET" not in str(caught.value) and "TOKEN" not in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    source = open_files([f"s3://{bucket}/a.csv"])
    proxy.fail(1, 1.0, "403")
    with raises(UnreadableInput):
        list(source.batches())
    proxy.calm()
    proxy.fail(1, 0.3, "500", "cut")  # what goes by is tried again
    assert [batch.num_rows for batch, _ in source.batches() if batch.num_rows] == [1]


def test_without_the_library_an_address_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with raises(MissingExtra):
        open_files(["s3://bucket/a.csv"])


def test_a_wrapped_name_is_of_the_kind_inside(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id\n1\n") + gzip.compress(b"2\n"))  # of two members
    assert [row["id"] for row in rows(tmp_path / "a.csv.gz")] == [1, 2]
    assert (find_kind("A.JSON.ZST").name, find_kind("x.tab").delimiter) == ("JSON", "\t")
    os.rename(tmp_path / "a.csv.gz", tmp_path / "data")
    assert [row["id"] for row in rows(tmp_path / "data", dialect=Dialect(kind=find_kind_by_extension("csv.gz")))] == [
        1,
        2,
    ]

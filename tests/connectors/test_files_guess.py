"""Test guessed types: a guess does not depend on the order of files, and no later value is converted to a guess.

The tests compare the patterns for numbers with Python's `re` and `decimal`, and those for dates and timestamps with
Arrow's grammar.
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from chance import mid_test
from hypothesis import example, given, strategies as st
from messages import raises
from test_cli import run
from test_files import read, write
from test_files_bad import refused

from ddflow.columns.casts import parse_type
from ddflow.connectors.files import open_files
from ddflow.connectors.files.guess import LADDER, SAMPLE, guess_type, possible_types
from ddflow.connectors.files.spelling import is_parsable_as
from ddflow.errors import SchemaMismatch

DAY = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
CLOCK = r"([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,%d})?)?)?"
NUMBER = r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"


def whole(least: int, most: int) -> Callable[[str], bool]:
    return lambda text: bool(re.fullmatch("0|-?[1-9][0-9]*", text)) and least <= int(text) <= most


def double(text: str) -> bool:
    if re.fullmatch("nan|NaN|-?inf|-?Infinity", text):
        return True
    if not re.fullmatch(NUMBER, text):
        return False
    digits = re.sub("[-.]|[eE].*", "", text).lstrip("0")
    value = float(text)
    return not digits or (len(digits) <= 15 and math.isfinite(value) and abs(value) >= 2.2250738585072014e-308)


def decimal(scale: int) -> Callable[[str], bool]:
    def is_one(text: str) -> bool:
        match = re.fullmatch(r"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?" if scale else r"(0|-?[1-9][0-9]*)()", text)
        before, after = (match[1].lstrip("-"), match[2] or "") if match else ("", "")
        return match is not None and len(after) <= scale and len(before.lstrip("0")) <= 38 - scale

    return is_one


def moment(pattern: str, zone: str = "") -> Callable[[str], bool]:
    def is_one(text: str) -> bool:
        if not re.fullmatch(pattern + zone, text, re.A):
            return False
        year, month, day = map(int, text[:10].split("-"))
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return day <= (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]

    return is_one


ZONE = r"(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)"
IS: dict[pa.DataType, Callable[[str], bool]] = {
    pa.int64(): whole(-(2**63), 2**63 - 1),
    pa.uint64(): whole(0, 2**64 - 1),
    pa.float64(): double,
    pa.decimal128(38, 0): decimal(0),
    pa.decimal128(38, 2): decimal(2),
    pa.decimal128(38, 38): decimal(38),
    pa.bool_(): lambda text: text in ("true", "True", "TRUE", "false", "False", "FALSE"),
    pa.date32(): moment(DAY),
    pa.time64("us"): lambda text: bool(re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?", text, re.A)),
    pa.timestamp("us"): moment(rf"{DAY}([T ]{CLOCK % 6})?"),
    pa.timestamp("us", "UTC"): moment(rf"{DAY}[T ]{CLOCK % 6}", ZONE),
}
SPELLED = [
    "0",
    "7",
    "-7",
    "007",
    "-07",
    "+7",
    " 7",
    "7 ",
    "\t7",
    "0x7",
    "0X7",
    "-0",
    "00",
    "7.",
    ".7",
    "7.0",
    "1.50",
    "-.5",
    "1e3",
    "1E+3",
    "1e-3",
    "1e400",
    "-1e400",
    "1e-400",
    "4.9e-324",
    "2.3e-308",
    "0e999",
    "0.0e-999",
    "1_0",
    "1,0",
    "123456789012345",
    "1234567890123456",
    "0.30000000000000004",
    "0.000000000000000000001",
    "1.00000000000000000",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1" * 38,
    "1" * 39,
    "1" * 36 + ".11",
    "1" * 37 + ".1",
    "0." + "1" * 38,
    "0.123",
    "nan",
    "NaN",
    "NAN",
    "-nan",
    "nan(1)",
    "inf",
    "-inf",
    "INF",
    "Inf",
    "+inf",
    "infinity",
    "Infinity",
    "-Infinity",
    "true",
    "True",
    "TRUE",
    "tRue",
    " true",
    "1d",
    "",
    "2024-02-29",
    "2023-02-29",
    "1900-02-29",
    " 2024-02-29",
    "2024-02-29 ",
    "2024-2-9",
    "20240229",
    "0000-01-01",
    "x",
    "2024-02-29T10",
    "2024-02-29 10",
    "2024-02-29 10:00",
    "2024-02-29 1000",
    "2024-02-29 24:00",
    "2024-02-29t10:00",
    "2024-02-29 10:00:00",
    "2024-02-29 10:00:60",
    "2024-02-29 10:00:00.",
    "2024-02-29 10:00:00.123456",
    "2024-02-29 10:00:00.1234567",
    "2024-02-29 10:00Z",
    "2024-02-29T10Z",
    "2024-02-29 10:00z",
    "2024-02-29Z",
    "2024-02-29 10:00+1",
    "2024-02-29 10:00+01",
    "2024-02-29 10:00 +01",
    "2024-02-29 10:00:00.5-0330",
    "2024-02-29 10:00:00+25:00",
    "10:00:00",
    "10:00:00.5",
    "10:00:00.1234567",
    "10:00",
    "24:00:00",
    " 10:00:00",
    "٣",
]


@pytest.mark.parametrize("kind", IS, ids=str)
def test_what_spells_a_value_is_what_the_pattern_says(kind: pa.DataType) -> None:
    for text in SPELLED:
        assert is_parsable_as(pa.array([None, text]), kind) == IS[kind](text), text


@given(st.text("0123456789+-.eExT: Z", min_size=1, max_size=24), st.sampled_from(list(IS)))
@example("٣", pa.int64())
def test_any_text_spells_a_value_exactly_where_the_pattern_says(text: str, kind: pa.DataType) -> None:
    assert is_parsable_as(pa.array([text]), kind) == IS[kind](text)


@given(st.lists(st.lists(st.sampled_from(SPELLED) | st.none(), max_size=3), min_size=1, max_size=3))
def test_a_guess_is_the_same_in_any_order_and_for_all_values_at_once(heads: list[list[str | None]]) -> None:
    told = [possible_types(pa.array(head, pa.string())) for head in heads]
    found = {guess_type(each) for each in itertools.permutations(told)}
    together = guess_type([possible_types(pa.array([text for head in heads for text in head], pa.string()))])
    assert found == {together}
    assert together is not None and all(is_parsable_as(pa.array(head, pa.string()), together) for head in heads)
    present = {text for head in heads for text in head} - {None}
    if together != pa.string():
        better = LADDER[: LADDER.index(together)]
        assert not [kind for kind in better if all(kind in IS and IS[kind](str(text)) for text in present)]


LATER = {
    "int64": ("7", ["007", "+7", " 7", "0x7", "-0", "7.0"]),
    "double": ("7.5", ["007.5", "+7.5", " 7.5", "INF", "nan(1)", "1e400", "1e-400", "0.30000000000000004"]),
    "decimal128(38, 0)": ("1" * 21, ["01", "1e2", "1.0", "1" * 39]),
    "decimal128(38, 17)": ("0.30000000000000004", ["00.3", ".3", "3e-1"]),
    "bool": ("true", ["1", "tRue", " true"]),
    "date32[day]": ("2024-02-29", [" 2024-02-29", "2024-02-30", "2024-02-29 10:00"]),
    "time64[us]": ("10:00:00", ["10:00", " 10:00:00"]),
    "timestamp[us]": ("2024-02-29 10:00", [" 2024-02-29", "2024-02-29 10:00Z", "1709200800"]),
}
BEYOND = SAMPLE // 20


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", LATER)
def test_a_later_value_that_is_spelled_otherwise_is_refused_and_named(kind: str, tmp_path: Path) -> None:
    good, others = LATER[kind]
    rows = f"{good},{'x' * 20}\n" * BEYOND
    for other in others:
        (tmp_path / "a.csv").write_text(f'id,v\n{rows}"{other}",b\n')
        assert str(open_files([tmp_path / "a.csv"]).schema.field("id").type) == kind
        said = refused(tmp_path / "a.csv")
        assert said.startswith(f"a.csv, row {BEYOND + 2:,}, column 'id': "), said
        assert repr(other)[:40] in said
        # What it says to type is right: the file is read, and text keeps what is written.
        fit = {name: parse_type(kind) for name, kind in re.findall(r"fits: \{'(\w+)': '([^']+)'\}", said)}
        table = read(tmp_path / "a.csv", types=fit)
        assert table["id"][BEYOND].as_py() == other or not pa.types.is_string(fit["id"]), said


def test_a_code_is_no_number_in_any_order_of_files_nor_after_a_state(tmp_path: Path) -> None:
    for name, text in (("z7", "7,a"), ("z007", "007,b"), ("space", " 7,b"), ("hex", "0x7,b"), ("plus", "+7,b")):
        (tmp_path / f"{name}.csv").write_text(f"id,v\n{text}\n")
    seven = str(tmp_path / "z7.csv")
    for name in ("z007", "space", "hex", "plus"):
        other = str(tmp_path / f"{name}.csv")
        for files in ((seven, other), (other, seven)):
            assert len(run("diff", *files, "--key", "id", "-o", "-").stdout.splitlines()) == 2, name
        state = str(tmp_path / name)
        run("diff", seven, "--key", "id", "--state", state, "-o", "-")
        said = run("diff", other, "--key", "id", "--state", state, "-o", "-", code=1).stderr
        assert f"{name}.csv, row 2, column 'id': " in said and "int64" in said
        assert "superseded" not in run("inspect", state).stdout  # and nothing was taken in
    # Who declares a type asks for the conversion.
    done = run("diff", str(tmp_path / "z007.csv"), "--key", "id", "--types", "id=int64", "--state", state, "-o", "-")
    assert '{"id":7,"v":"b","_time":2,"_diff":1}' in done.stdout


def test_files_of_any_kinds_agree_on_types_in_every_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n,at,code,note\n1,1,2024-01-01,7,\n")
    (tmp_path / "b.csv").write_text("id,n,at,code,note\n2,1.5,2024-01-01 10:00,08,\n")
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write('{"id": 18446744073709551615, "n": 2, "at": "2024-01-01", "code": "x"}\n{"id": 3, "note": null}\n')
    write(tmp_path / "d.parquet", pa.table({"id": pa.array([4], pa.uint64()), "code": ["y"]}))
    files = [tmp_path / name for name in ("a.csv", "b.csv", "c.jsonl.gz")]
    meant = {"id": pa.uint64(), "n": pa.float64(), "at": pa.timestamp("us"), "code": pa.string(), "note": pa.string()}
    for given_files in itertools.permutations(files):
        schema = open_files(given_files).schema
        assert {name: schema.field(name).type for name in schema.names} == {n: meant[n] for n in schema.names}
        assert sorted(read(*given_files)["code"].to_pylist(), key=str) == ["08", "7", None, "x"]
    for given_files in itertools.permutations([*files[:2], tmp_path / "d.parquet"]):
        if given_files[0].suffix == ".csv":
            assert open_files(given_files).schema.field("id").type == pa.uint64()


def test_lists_and_objects_of_several_files_are_joined(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "p": {"x": 1, "on": "2024-01-01"}, "l": [], "w": [1]}\n')
    (tmp_path / "b.jsonl").write_text('{"id": 2, "p": {"x": 1.5, "y": "b"}, "l": ["c"], "w": [1.5]}\n')
    files = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for one, other in (files, files[::-1]):
        rows = {row["id"]: row for row in read(one, other).to_pylist()}
        assert rows[1]["p"] == {"x": 1.0, "on": "2024-01-01", "y": None} and rows[2]["l"] == ["c"]
        assert rows[2]["p"] == {"x": 1.5, "on": None, "y": "b"} and rows[1]["w"] == [1.0]


def test_files_whose_types_no_type_holds_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "p": {"x": 1}}\n')
    (tmp_path / "c.jsonl").write_text('{"id": 1, "p": [1]}\n')
    (tmp_path / "d.csv").write_text("id,p\nx,\n")
    (tmp_path / "e.jsonl").write_text('{"id": 1, "p": {"x": 1}}\n{"id": 1, "p": 2}\n')
    for pair in (["a.jsonl", "c.jsonl"], ["a.jsonl", "d.csv"]):
        with raises(SchemaMismatch):
            open_files([tmp_path / name for name in pair])
    with raises(SchemaMismatch):
        open_files([tmp_path / "e.jsonl"])


@mid_test
def test_whole_numbers_that_a_double_rounds_and_quoted_codes_are_refused_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = '{"id": 1.5, "x": 0.30000000000000004}\n{"id": 1e300}\n'
    path.write_text(rows * BEYOND + '{"id": 9007199254740993}\n')
    assert open_files([path]).schema.types == [pa.float64()] * 2  # the shortest text of its double
    assert refused(path).startswith(
        f"a.jsonl, line {2 * BEYOND + 1:,}, column 'id': 9007199254740993 does not fit the guessed type double"
    )
    assert read(path, types={"id": pa.float64()})["id"].to_pylist()[-3:] == [1.5, 1e300, 9007199254740992.0]
    path.write_text(rows + '{"id": 9007199254740993}\n{"id": "x"}\n')
    assert read(path)["id"].to_pylist() == ["1.5", "1e300", "9007199254740993", "x"]  # as it is written
    before = f'{{"id": {2**64}}}\n' * BEYOND
    path.write_text(f'{before}{{"id": "{2**64 + 1}"}}\n')
    assert set(read(path)["id"].to_pylist()) == {Decimal(2**64), Decimal(2**64 + 1)}
    path.write_text(f'{before}{{"id": "007"}}\n')
    assert refused(path).startswith(f"a.jsonl, line {BEYOND + 1:,}, column 'id': \"007\" does not fit the guessed type")


DEEP = {
    "crash": "[" * 20_000 + "]" * 20_000,
    "recursion": "[" * 400 + "]" * 400,
    "just": "[" * 40 + "]" * 40,
    "objects": '{"a":' * 5000 + "1" + "}" * 5000,
    "over_lines": ("[" * 30 + "\n") * 1000,
    "behind_a_quote": '"\\\\", "b": ' + "[" * 20_000,
    "behind_a_return": '"\r' + "[" * 20_000,
}


@pytest.mark.drawn(7)
@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("before", [0, 1, 300_000])
def test_brackets_too_deep_are_refused_before_a_parser_sees_them(name: str, before: int, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n' * before + f'{{"id": 2, "a": {DEEP[name]}}}\n')
    said = refused(tmp_path / "a.jsonl", types={"a": pa.string()})
    assert said.startswith(f"a.jsonl, line {before + 1:,}: "), said
    assert "more than 40 deep" in said or name in ("over_lines", "behind_a_return")


def test_brackets_in_text_and_as_deep_as_may_be_are_read(tmp_path: Path) -> None:
    deep = "[" * 39 + "]" * 39
    (tmp_path / "a.jsonl").write_text('{"id": 1, "t": "\\"' + "[{" * 5000 + f'", "a": {deep}}}\n')
    table = read(tmp_path / "a.jsonl")
    assert len(table["t"][0].as_py()) == 10_001
    for ending in (".parquet", ".arrow", ".jsonl"):
        assert read(write(tmp_path / f"b{ending}", table)).equals(table)


def test_a_line_of_gigabytes_in_a_small_gzip_is_refused_at_its_beginning(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wb", compresslevel=1) as file:
        file.write(b'{"id": 1}\n{"id": 2, "s": "')
        for _ in range(40):
            file.write(b"x" * (8 << 20))
    before = pa.total_allocated_bytes()
    pool_peak = pa.default_memory_pool().max_memory() or 0
    assert refused(tmp_path / "a.jsonl.gz").startswith("a.jsonl.gz, line 2: it is longer than 2,097,152 bytes")
    assert (pa.default_memory_pool().max_memory() or 0) <= max(pool_peak, before + (64 << 20))


def test_one_bad_number_among_numbers_is_said_and_plain_text_is_not(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n}.5,{'A' if n % 2 else n},{n:05},{'x' if n == 7 else ''}\n" for n in range(20))
    (tmp_path / "1.csv").write_text("id,amount,mixed,zip,once\n" + rows)
    (tmp_path / "2.csv").write_text("id,amount,mixed,zip,once\n20,7,B,1,\n21,1 000,B,2,\n")
    found = open_files([tmp_path / "1.csv", tmp_path / "2.csv"])
    assert [str(found.schema.field(name).type) for name in ("id", "amount", "zip")] == ["int64", "string", "string"]
    says = "'amount' is text, because '1 000' (2.csv, row 3) is not a number; 21 of its first 22 values are: fix it, "
    says += "pass dd.FilePath('2.csv', null='1 000') if it means null, or declare {'amount': 'string'} if it is right"
    assert [each.replace(f"{tmp_path}/", "") for each in found.doubts] == [says]
    assert open_files([tmp_path / "2.csv"], types={"amount": "string"}).doubts == []
    assert open_files([tmp_path / "2.csv"], known=found.schema).doubts == []
    (tmp_path / "3.jsonl").write_text('{"id": 1, "n": 5}\n{"id": 2, "n": 6}\n{"id": 3, "n": "-"}\n')
    (each,) = open_files([tmp_path / "3.jsonl"]).doubts
    assert "line 3) is not a number; 2 of its first 3 values are: fix it, or declare {'n': 'string'}" in each


def test_a_text_that_says_that_there_is_no_value_may_mean_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the only advice about "k.A." in a column of numbers was to make the column text, in a state for ever."""
    monkeypatch.chdir(tmp_path)
    for text, hinted in (("k.A.", True), ("-", True), ("x", False)):
        Path("1.csv").write_text(f"id,amount\n1,5\n3,{text}\n")
        said = run("diff", "1.csv", "--key", "id", "--types", "amount=int64", "--null", "NA", "-o", "-", code=1).stderr
        assert (f"pass --null NA --null {text} if it means null, fix it" in said) == hinted
    Path("1.jsonl").write_text('{"id": 1, "amount": "-"}\n')
    said = run("diff", "1.jsonl", "--key", "id", "--types", "amount=int64", "-o", "-", code=1).stderr
    assert "means null" not in said and "amount" in said


def test_a_column_that_one_value_made_text_is_a_line_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id,amount\n1,5\n2,6\n3,n/a\n")
    file = str(tmp_path / "1.csv")
    (tmp_path / "2.csv").write_text("id,amount\n1,5\n")
    other = ("compare", str(tmp_path / "2.csv"), file, "--key", "id")
    for words in (("diff", file, "--key", "id"), ("sql", "select * from t", f"t={file}:key=id"), other):
        done = run(*words, "-o", "-")
        null = "'NAME=FILE:null=n/a'" if words[0] == "sql" else "--null n/a"
        assert f"pass {null} if it means null, or declare --types amount=string if" in done.stderr
        assert done.stderr.count("'amount' is text, because 'n/a'") == 1 and "is text" not in done.stdout
        assert "is text" not in run(*words, "-o", "-", "--null", "n/a").stderr

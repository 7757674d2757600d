"""Test unusual forms of numbers and dates: the meaning of each form, and values without a known form."""

from __future__ import annotations

import datetime
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.files import FileOptions, MultiFileReader, open_files
from ddflow.connectors.files.kinds import Dialect, ValueFormats
from ddflow.connectors.files.spelling import (
    UnparsableValue,
    is_parsable_as,
    parse_texts_leniently,
    parse_texts_strictly,
)
from ddflow.errors import SchemaMismatch, SpecError

AT = datetime.datetime(2024, 1, 3, 14, 5)
GERMAN = Dialect(";", decimal=",", dates=("%d.%m.%Y", "%d.%m.%Y %H:%M"))


def source(path: Path, text: str, dialect: Dialect, **types: Any) -> MultiFileReader:
    path.write_text(text, encoding="utf-8")
    return open_files([path], types, how=FileOptions(dialect=dialect))


def rows(given: MultiFileReader) -> list[dict[str, Any]]:
    return [row for batch, _ in given.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("form", "text", "meant"),
    [
        ("%d.%m.%Y", "03.01.2024", "2024-01-03"),
        ("%d.%m.%Y", "3.1.2024", "2024-01-03"),
        ("%m/%d/%Y %I:%M:%S %p", "1/3/2024 2:05:00 PM", "2024-01-03 14:05:00"),
        ("%m/%d/%Y %I:%M %p", "1/3/2024 12:05 am", "2024-01-03 00:05:00"),
        ("%m/%d/%Y %I:%M %p", "1/3/2024 12:05 pm", "2024-01-03 12:05:00"),
        ("%d-%b-%y", "03-JAN-24", "2024-01-03"),
        ("%d %B %Y", "3 September 1999", "1999-09-03"),
        ("%y%m%d", "690103", "1969-01-03"),
        ("%y%m%d", "680103", "2068-01-03"),
        ("%Y%m%dT%H%M%S", "20240103T140500", "2024-01-03 14:05:00"),
        ("%d.%m.%Y %H:%M:%S,%f", "03.01.2024 14:05:00,123456789", "2024-01-03 14:05:00.123456789"),
        ("%d/%m/%Y %H:%M%z", "03/01/2024 14:05+0130", "2024-01-03 14:05:00+0130"),
        ("%d/%m/%Y %H:%M %z", "03/01/2024 14:05 Z", "2024-01-03 14:05:00Z"),
        ("%d/%m/%Y %H Uhr", "03/01/2024 14 Uhr", "2024-01-03 14:00:00"),
        ("%%%d.%m.%Y (x)", "%03.01.2024 (x)", "2024-01-03"),
        ("iso", "2024-01-03T14:05", "2024-01-03T14:05"),
        # In none: the empty text, which no moment takes.
        ("%d.%m.%Y", "03.01.24", ""),
        ("%d.%m.%Y", " 03.01.2024", ""),
        ("%d.%m.%Y", "03.01.2024 14:05", ""),
        ("%d.%m.%Y", "2024-01-03", ""),
        ("%m/%d/%Y %I:%M %p", "1/3/2024 14:05 PM", ""),
        ("%d%m%Y", "3012024", ""),
        ("%Y%m%d %I%M%p", "20240103 1405AM", ""),
        ("%Y%m%d %I%M%p", "20240103 0205PM", "2024-01-03 14:05:00"),
        ("iso", "03.01.2024", ""),
    ],
)
def test_a_form_gives_what_iso_would(form: str, text: str, meant: str) -> None:
    given = pa.array([None, text])
    assert ValueFormats(dates=(form,)).validate().normalize(given, pa.timestamp("us")).to_pylist() == [None, meant]
    assert ValueFormats(dates=(form,)).normalize(given, pa.int64()) is given


@pytest.mark.parametrize("text", ["31.02.2024", "00.01.2024", "01.13.2024", "29.02.2023"])
def test_a_day_that_is_not_is_none(text: str) -> None:
    assert not is_parsable_as(pa.array([text]), pa.date32(), forms=ValueFormats(dates=("%d.%m.%Y",)))


@pytest.mark.parametrize(
    "form", ["%d.%m.%Y %H:%M:%S.%f", "%Y%m%d%H%M%S%f", "%m/%d/%y %I:%M:%S.%f %p", "%d. %B %Y, %H:%M:%S.%f"]
)
def test_what_python_writes_by_a_form_is_read_by_it(form: str) -> None:
    draw, first = random.Random(form), datetime.datetime(1969, 1, 1)
    given = [first + datetime.timedelta(microseconds=draw.randrange(99 * 365 * 86_400 * 10**6)) for _ in range(500)]
    texts = pa.array([each.strftime(form) for each in given])
    assert parse_texts_strictly(texts, pa.timestamp("us"), forms=ValueFormats(dates=(form,))).to_pylist() == given


def test_of_several_forms_the_first_that_a_value_has_is_its_own() -> None:
    forms = ValueFormats(dates=("%d/%m/%Y", "%m/%d/%Y", "%m/%d/%Y %H:%M", "iso"))
    texts = pa.array(["01/02/2024", "01/13/2024 14:05", "2024-01-03"])
    found = parse_texts_strictly(texts, pa.timestamp("us"), forms=forms).to_pylist()
    assert [each.isoformat() for each in found] == ["2024-02-01T00:00:00", "2024-01-13T14:05:00", "2024-01-03T00:00:00"]
    # It is no day of the first, and days of both orders in one column would be a guess.
    assert not is_parsable_as(pa.array(["01/13/2024"]), pa.date32(), forms=forms)


def test_a_column_of_nulls_stays_one() -> None:
    assert parse_texts_strictly(
        pa.array([None, None], pa.string()), pa.date32(), forms=GERMAN.value_formats
    ).to_pylist() == [
        None,
        None,
    ]
    assert len(parse_texts_strictly(pa.array([], pa.string()), pa.date32(), forms=GERMAN.value_formats)) == 0


def test_columns_are_guessed_by_the_forms(tmp_path: Path) -> None:
    text = "id;n;money;day;at;iso;code\n1;12,50;1,2345678901234567;03.01.2024;03.01.2024 14:05;2024-01-03;1.250\n"
    text += "2;-3,5e2;7;;;;7\n"
    found = source(tmp_path / "a.csv", text, GERMAN)
    assert [str(kind) for kind in found.schema.types] == [
        "int64",
        "double",
        "decimal128(38, 16)",
        "date32[day]",
        "timestamp[us]",
        "string",
        "string",
    ]
    assert rows(found)[0]["n"] == 12.5 and rows(found)[0]["at"] == AT
    assert rows(found)[1]["n"] == -350.0


def test_declared_types_are_read_by_the_forms(tmp_path: Path) -> None:
    text = "id;n;money;day;at;zoned\n1; 12,50 ;12,50;03.01.2024 ;03.01.2024;03.01.2024 14:05+01:00\n"
    dialect = GERMAN._replace(dates=(*GERMAN.dates, "%d.%m.%Y %H:%M%z"))
    types = {"n": "float64", "money": "decimal(9,2)", "day": "date", "at": "timestamp", "zoned": "timestamptz"}
    (row,) = rows(source(tmp_path / "a.csv", text, dialect, **types))
    assert (row["n"], str(row["money"]), row["day"]) == (12.5, "12.50", AT.date())
    assert row["at"] == datetime.datetime(2024, 1, 3)
    assert row["zoned"] == datetime.datetime(2024, 1, 3, 13, 5, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "text", "dialect", "remedy"),
    [
        ("float64", "12,50", Dialect(";"), "pass dd.FilePath('{}', delimiter=';', decimal=','), fix it"),
        ("float64", "12.50", GERMAN, "pass dd.FilePath('{}', delimiter=';', decimal='.', dates="),
        (
            "float64",
            "1.250,00",
            Dialect(";", decimal=","),
            "pass dd.FilePath('{}', delimiter=';', decimal=',', thousands='.'), fix it",
        ),
        (
            "float64",
            "1.250,00",
            Dialect(";"),
            "pass dd.FilePath('{}', delimiter=';', decimal=',', thousands='.'), fix it",
        ),
        ("float64", "1,250.00", Dialect(), "pass dd.FilePath('{}', thousands=','), fix it"),
        ("float64", "1,250.00", GERMAN, "fix it"),
        ("float64", "1'250.00", Dialect(), "pass dd.FilePath('{}', thousands=\"'\"), fix it"),
        ("float64", "1\u2019250,50", Dialect(), "pass dd.FilePath('{}', decimal=',', thousands=\"'\"), fix it"),
        ("float64", "1\u202f250,50", Dialect(), "pass dd.FilePath('{}', decimal=',', thousands=' '), fix it"),
        ("int64", "-1 250", Dialect(), "pass dd.FilePath('{}', thousands=' '), fix it"),
        # Texts that are numbers as they are written: another notation would change their values.
        ("int64", "12.500", Dialect(), "fix it, or declare"),
        ("decimal(12,2)", "19.905", Dialect(), "fix it, or declare"),
        (
            "float64",
            "1,250",
            Dialect(),
            "pass dd.FilePath('{0}', decimal=',') or dd.FilePath('{0}', thousands=','), fix",
        ),
        ("float64", "1 25", Dialect(), "fix it"),
        (
            "float64",
            "1.250,00",
            Dialect(decimal=",", thousands=" "),
            "pass dd.FilePath('{}', decimal=',', thousands='.')",
        ),
        ("int64", "12,50", GERMAN, "fix it"),
        ("date", "03.01.2024", Dialect(), "pass dd.FilePath('{}', dates='%d.%m.%Y'), fix it"),
        ("date", "03.01.2024 14:05", Dialect(), "fix it"),
        ("timestamp", "3.1.2024 14:05", Dialect(), "pass dd.FilePath('{}', dates='%d.%m.%Y %H:%M'), fix it"),
        (
            "date",
            "2024-01-03",
            Dialect(dates=("%d.%m.%Y",)),
            "pass dd.FilePath('{}', dates=['%d.%m.%Y', 'iso']), fix it",
        ),
        (
            "date",
            "01/03/2024",
            Dialect(),
            "pass dd.FilePath('{0}', dates='%d/%m/%Y') or dd.FilePath('{0}', dates='%m/%d/%Y'), fix it",
        ),
        ("date", "01/13/2024", Dialect(), "pass dd.FilePath('{}', dates='%m/%d/%Y'), fix it"),
        ("date", "31.02.2024", GERMAN, "fix it"),
    ],
)
def test_a_value_of_another_form_is_named_with_the_option(
    kind: str, text: str, dialect: Dialect, remedy: str, tmp_path: Path
) -> None:
    path, schema = tmp_path / "a.csv", pa.schema({"id": pa.int64(), "v": dd_type(kind)})
    between = dialect.delimiter or ","
    path.write_text(f'id{between}v\n1{between}\n2{between}"{text}"\n')
    for known, types in ((schema, {}), (None, {"v": kind})):
        given = open_files([path], types, known=known, how=FileOptions(dialect=dialect))
        with pytest.raises(SchemaMismatch) as caught:
            rows(given)
        assert caught.value.asked == f"{path}, row 3, column 'v'" and repr(text) in caught.value.found
        assert caught.value.fix.startswith(remedy.format(path)), caught.value.fix


@pytest.mark.parametrize(
    ("decimal", "thousands", "right", "wrong"),
    [
        (
            ",",
            ".",
            "1.250,00=1250 -1.250.000,5=-1250000.5 1250,5=1250.5 7=7 999,1=999.1",
            "1.25 0.125 01.250 1.2500 12.50,1",
        ),
        (",", ".", "12.500=12500 1.234.567=1234567", "1234.567 1..250 .250 1.250. 1.250,00.000 1.250,5e3 1,000.5"),
        (".", ",", "1,250.00=1250 1,234,567.8=1234567.8 1250.5=1250.5", "1,25 0,125 1,250,00 1.250,00 1,2345"),
        (".", "'", "1'250.00=1250 1\u2019250=1250 1.5=1.5", "1'25 1''250 '250 1\u02bc250 1,5"),
        (",", "\u2019", "1'250,00=1250 1\u2019250\u2019000=1250000", "1.250,00"),
        (
            ",",
            " ",
            "1_250,00=1250 1\u00a0250=1250 1\u202f250\u202f000,5=1250000.5",
            "1_25 1__250 1_250_0 1.250,00 1\u2009250",
        ),
        (".", "\u202f", "1_250.00=1250 -12\u00a0500=-12500", "1_25"),
        (".", None, "1250.5=1250.5", "1,250.00 1'250 1_250"),
    ],
)
def test_groups_are_of_three_digits_and_the_rest_is_no_number(
    decimal: str, thousands: str | None, right: str, wrong: str
) -> None:
    forms = Dialect(decimal=decimal, thousands=thousands).validate().value_formats
    texts, meant = zip(*(each.replace("_", " ").split("=") for each in right.split(" ")), strict=True)
    assert parse_texts_strictly(pa.array(texts), pa.float64(), forms=forms).to_pylist() == [
        float(each) for each in meant
    ]
    for kind in (pa.int64(), pa.decimal128(9, 0)):
        whole = [text for text in texts if decimal not in text]
        found = parse_texts_strictly(pa.array(whole, pa.string()), kind, forms=forms).to_pylist()
        assert found == [int(m) for m, text in zip(meant, texts, strict=True) if decimal not in text]
    for text in wrong.replace("_", "\0").split(" "):
        for kind in (pa.float64(), pa.int64(), pa.decimal128(12, 4)):
            for way in (parse_texts_strictly, parse_texts_leniently):
                with pytest.raises(UnparsableValue):
                    way(pa.array(["7", text.replace("\0", " ")]), kind, forms=forms)


def test_columns_with_groups_are_guessed_and_declared(tmp_path: Path) -> None:
    dialect = GERMAN._replace(thousands=".")
    text = "id;n;money;zip;day\n1.000;12,50;1.250,00;08001;03.01.2024\n2;7;7;3012;\n"
    found = source(tmp_path / "a.csv", text, dialect)
    assert [str(kind) for kind in found.schema.types] == ["int64", "double", "double", "string", "date32[day]"]
    assert rows(found)[0] == {"id": 1000, "n": 12.5, "money": 1250.0, "zip": "08001", "day": AT.date()}
    (first, _) = rows(source(tmp_path / "a.csv", text, dialect, money="decimal(9,2)", id="string"))
    assert str(first["money"]) == "1250.00" and first["id"] == "1.000"


def test_numbers_of_json_have_no_groups(tmp_path: Path) -> None:
    text = '{"id": 1.5, "n": 1.250, "text": "1.250,00"}\n'
    found = source(tmp_path / "a.jsonl", text, GERMAN._replace(thousands="."))
    assert rows(found) == [{"id": 1.5, "n": 1.25, "text": "1.250,00"}]


def dd_type(kind: str) -> pa.DataType:
    types = {"float64": pa.float64(), "int64": pa.int64(), "date": pa.date32(), "timestamp": pa.timestamp("us")}
    return (types | {"decimal(12,2)": pa.decimal128(12, 2)})[kind]


def test_dates_are_of_json_too_and_its_numbers_have_points(tmp_path: Path) -> None:
    text = '{"id": 1.5, "day": "03.01.2024", "text": "12,50"}\n'
    found = source(tmp_path / "a.jsonl", text, GERMAN)
    assert rows(found) == [{"id": 1.5, "day": AT.date(), "text": "12,50"}]
    assert not found.doubts
    with raises(SchemaMismatch):
        rows(source(tmp_path / "a.jsonl", text, Dialect(), day="date"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("12,50 13 1,2", "of '12,50' ({0}, row 3): pass dd.FilePath('{0}', delimiter=';', decimal=','), or declare"),
        (
            "3.1.2024 13.1.2024",
            "of '3.1.2024' ({0}, row 3): pass dd.FilePath('{0}', delimiter=';', dates='%d.%m.%Y'), or",
        ),
        (
            "1.250,00 7",
            "of '1.250,00' ({0}, row 3): pass dd.FilePath('{0}', delimiter=';', decimal=',', thousands='.'), or",
        ),
        ("1'250 1.5", "of \"1'250\" ({0}, row 3): pass dd.FilePath('{0}', delimiter=';', thousands=\"'\"), or declare"),
        (
            "k.A. 3.1.2024 13.1.2024 k.A. 4.1.2024",
            "of '3.1.2024' ({0}, row 4): pass dd.FilePath('{0}', delimiter=';', null='k.A.', dates='%d.%m.%Y'), or",
        ),
        ("3.1.2024 - 4.1.2024 n/a 5.1.2024 6.1.2024", None),
        ("12,50 x", None),
        ("1.250,00 1,250.00", None),
        ("1,2,3 2,3", None),
        ("1.2.3 10.0.2024", None),
        ("03.01.2024 2024-01-03", None),
    ],
)
def test_a_column_that_is_text_by_its_form_is_said(values: str, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = "id;v\n" + "".join(f"{n};{each}\n" for n, each in enumerate(["", *values.split(" ")]))
    doubts = source(path, text, Dialect(";")).doubts
    if said is None:
        assert not doubts
    else:
        assert len(doubts) == 1 and doubts[0].startswith(f"'v' is text, because {said.format(path)}"), doubts


@pytest.mark.parametrize(
    "dates",
    [
        "%d.%m",
        "%m.%Y",
        "%d.%m.%b.%Y",
        "%d.%d.%m.%Y",
        "%d.%m.%Y %M",
        "%d.%m.%Y %I:%M",
        "%d.%m.%Y %Q",
        "%d.%m.%Y %",
        "dd.MM.yyyy",
        "ISO",
    ],
)
def test_what_is_no_form_is_refused(dates: str) -> None:
    with raises(SpecError):
        dd.FilePath("a.csv", dates=dates)


def test_another_decimal_is_refused() -> None:
    with raises(SpecError):
        dd.FilePath("a.csv", decimal=";")


@pytest.mark.parametrize(
    ("thousands", "decimal", "said"),
    [
        (";", ".", "it is not a point, comma, space or apostrophe"),
        ("", ".", "it is not a point, comma, space or apostrophe"),
        ("''", ".", "it is not a point, comma, space or apostrophe"),
        (".", ".", "decimal='.' is the same mark; use different marks: decimal=',', thousands='.'"),
        (",", ",", "decimal=',' is the same"),
    ],
)
def test_what_cannot_stand_between_groups_is_refused(thousands: str, decimal: str, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"thousands={thousands!r}: {said}")):
        dd.FilePath("a.csv", thousands=thousands, decimal=decimal)

"""Test common SQL functions beside DuckDB and Python, and errors for other libraries' expressions."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st
from messages import raises
from pyspark.sql import Column

import ddflow as dd
from ddflow.errors import ExpressionError
from ddflow.expressions import compile
from ddflow.expressions.functions import dates as date_functions
from ddflow.expressions.functions.json_text import MOST_NESTED, MOST_TEXT, format_double

YEARS = (range(1890, 2040), range(2000, 2800), range(9990, 9999))
DATES = st.one_of(st.none(), st.dates(dt.date(1600, 1, 1), dt.date(2400, 12, 31)))
MOMENTS = st.one_of(st.none(), st.datetimes(dt.datetime(1600, 1, 1), dt.datetime(2400, 12, 31)))


def values(text: str, **columns: Any) -> list[Any]:
    batch = pa.record_batch(columns)
    compiled = compile(text, batch.schema)
    result = compiled(batch)
    result.validate(full=True)
    assert result.type == compiled.type
    found: list[Any] = result.to_pylist()
    return found


def by_duckdb(text: str, **columns: Any) -> list[Any]:
    frame = pa.table({"row": range(len(next(iter(columns.values())))), **columns})
    with duckdb.connect() as connection:
        connection.register("frame", frame)
        return [row[0] for row in connection.sql(f"select {text} from frame order by row").fetchall()]


@given(st.lists(DATES, min_size=1), st.integers(-5000, 5000), st.sampled_from(["months", "years", "days", "weeks"]))
def test_dates_move_as_in_duckdb(dates: list[Any], count: int, unit: str) -> None:
    count = count // 20 if unit == "years" else count
    column = pa.array(dates, pa.date32())
    for sign in "+-":
        text = f"d {sign} interval '{count} {unit}'"
        assert values(text, d=column) == by_duckdb(f"cast({text} as date)", d=column)


@given(st.lists(MOMENTS, min_size=1), st.integers(-9000, 9000), st.sampled_from(["months", "days", "hours", "seconds"]))
def test_timestamps_move_as_in_duckdb(moments: list[Any], count: int, unit: str) -> None:
    column = pa.array(moments, pa.timestamp("us"))
    for sign in "+-":
        text = f"t {sign} interval '{count}' {unit}"
        assert values(text, t=column) == by_duckdb(text, t=column)


PAIRS = st.lists(st.tuples(st.none() | MOMENTS, st.none() | MOMENTS), min_size=1)
OF_DURATIONS = [
    *("t - u", "t - d", "d - t", "-(t - u)", "(t - u) + (u - t)", "(t - u) - interval '90' minute", "u + (t - u)"),
    *("(t - u) + t", "u - (t - u)", "hour(d + (t - u))", "(t - u) * 3", "2 * (t - u)"),
    *("interval '1' day + interval '2' hour", "n * interval '7' second", "interval '12' second / 4 * n"),
    *("t - u > interval '1' day", "t - u = u - t", "coalesce(t - u, interval '1' second)", "greatest(t - u, u - t)"),
    *("case when t > u then t - u end", "t - u in (interval '0' second)", "cast('1 day 2 hours' as interval)"),
    *("extract(day from t - u)", "extract(hour from t - u)", "extract(minute from t - u)"),
    *("d - e", "e - d + 1", "(d - e) * 2", "cast(t as date) - d", "interval '1' hour * 2.5"),
]


@given(PAIRS)
def test_differences_of_times_are_as_in_duckdb(pairs: list[Any]) -> None:
    t, u = (pa.array(each, pa.timestamp("us")) for each in zip(*pairs, strict=True))
    columns = {"t": t, "u": u, "d": u.cast(pa.date32(), safe=False), "e": t.cast(pa.date32(), safe=False)}
    columns |= {"n": pa.array(range(-2, len(pairs) - 2), pa.int32())}
    right = by_duckdb(f"{{{', '.join(f'e{n}: {text}' for n, text in enumerate(OF_DURATIONS))}}}", **columns)
    for number, text in enumerate(OF_DURATIONS):
        assert values(text, **columns) == [row[f"e{number}"] for row in right], text


@example([9_999_999_999_999_999, 2**53 + 1, -(2**63) + 1])
@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1))
def test_the_seconds_of_a_duration_are_the_nearest_number(microseconds: list[int]) -> None:
    """DuckDB's are the next one here and there."""
    durations = pa.array(microseconds, pa.int64()).cast(pa.duration("us"))
    assert values("extract(epoch from w)", w=durations) == [each / 1_000_000 for each in microseconds]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_quotients_of_durations_are_rounded_half_away_from_zero(pairs: list[tuple[int, int]]) -> None:
    pairs = [(value, by or 2) for value, by in pairs if (value, by) != (-(2**63), -1)] + [(9, 2), (-9, 2), (11, -2)]
    durations, numbers = (pa.array(each, pa.int64()) for each in zip(*pairs, strict=True))
    schema = pa.schema({"w": pa.duration("us"), "n": pa.int64()})
    batch = pa.record_batch([durations.cast(pa.duration("us")), numbers], schema=schema)
    halves = [(2 * abs(value) + abs(by)) // (2 * abs(by)) for value, by in pairs]
    right = [half if (value < 0) == (by < 0) else -half for half, (value, by) in zip(halves, pairs, strict=True)]
    assert compile("w / n", schema)(batch).cast(pa.int64()).to_pylist() == right


def test_durations_of_columns_meet_in_the_finer_unit_and_fail_where_there_is_no_room() -> None:
    whole, fine = pa.array([60, None], pa.duration("s")), pa.array([1, 5], pa.duration("ns"))
    assert compile("w + f", pa.schema({"w": whole.type, "f": fine.type}))(
        pa.record_batch({"w": whole, "f": fine})
    ).equals(pa.array([60_000_000_001, None], pa.duration("ns")))
    assert values("t + w", w=whole, t=pa.array([dt.datetime(2024, 1, 1)] * 2))[0] == dt.datetime(2024, 1, 1, 0, 1)
    assert values("w > interval 30 seconds", w=whole) == [True, None]
    big = pa.array([2**62, 2**63 - 1], pa.duration("us"))
    assert values("w / 1", w=big) == values("w", w=big)
    for text in ("w * 4", "w + w", "w / 0", "w * 1e9", "w > cast(f as interval) + f"):
        with raises(ExpressionError):
            values(text, w=big, f=pa.array([2**62, 1], pa.duration("s")))
    nanoseconds = pa.array([5, 7]).view(pa.timestamp("ns"))
    assert compile("t - t", pa.schema({"t": nanoseconds.type}))(pa.record_batch({"t": nanoseconds})).type == fine.type
    zoned = pa.array([7, 5], pa.timestamp("us", "Europe/Zurich"))
    assert values("z - t", z=zoned, t=pa.array([5, None], pa.timestamp("us"))) == [dt.timedelta(microseconds=2), None]


@given(st.lists(MOMENTS, min_size=1))
def test_patterns_of_dates_are_written_as_duckdb_writes_its_own(moments: list[Any]) -> None:
    column = pa.array(moments, pa.timestamp("us"))
    pairs = {
        "yyyy-MM-dd HH:mm:ss.SSSSSS": "%Y-%m-%d %H:%M:%S.%f",
        "EEE d MMM yy": "%a %-d %b %y",
        "EEEE dd MMMM yyyy, h a": "%A %d %B %Y, %-I %p",
        "D DDD hh H m s": "%-j %j %I %-H %-M %-S",
    }
    for java, theirs in pairs.items():
        assert values(f"date_format(t, '{java}')", t=column) == by_duckdb(f"strftime(t, '{theirs}')", t=column)


TEXTS = st.one_of(st.none(), st.text("a,é;1", max_size=8))


@given(st.lists(TEXTS, min_size=1), st.integers(0, 4))
def test_texts_are_split_as_in_duckdb(texts: list[Any], index: int) -> None:
    column = pa.array(texts, pa.string())
    assert values("split(s, ',')", s=column) == by_duckdb("string_split(s, ',')", s=column)
    assert values("split(s, '[,;]')", s=column) == by_duckdb("string_split_regex(s, '[,;]')", s=column)
    found = values(f"get(split(s, ','), {index})", s=column)
    assert found == by_duckdb(f"string_split(s, ',')[{index + 1}]", s=column)


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
DOCUMENTS = st.recursive(
    LEAVES, lambda of: st.one_of(st.lists(of, max_size=3), st.dictionaries(st.sampled_from("abé"), of, max_size=3))
)
PATHS = st.lists(st.one_of(st.sampled_from("abé"), st.integers(0, 3)), max_size=4)


def standing(value: Any, path: list[Any]) -> Any:
    """What is at a path; None for nothing."""
    for step in path:
        fits = isinstance(value, dict) if isinstance(step, str) else isinstance(value, list) and step < len(value)
        value = (value.get(step) if isinstance(step, str) else value[step]) if fits else None
    return value


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), PATHS, st.booleans())
def test_what_stands_at_a_path_is_what_python_finds(documents: list[Any], path: list[Any], ascii: bool) -> None:
    texts = pa.array([json.dumps(each, ensure_ascii=ascii).replace("\\ud", "\\uD") for each in documents], pa.string())
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    found = values(f"get_json_object(s, '${steps}')", s=texts)
    for document, text in zip(documents, found, strict=True):
        value = standing(document, path)
        if value is None:
            assert text is None or (not path and text == "null")
        elif isinstance(value, str):
            assert text == value
        else:
            assert json.loads(text) == value


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_a_shape_takes_what_is_of_its_types(documents: list[Any]) -> None:
    texts = pa.array([json.dumps({"v": each}) for each in documents])
    for kind, of in (("BIGINT", int), ("STRING", str), ("BOOLEAN", bool), ("DOUBLE", (int, float))):
        for document, found in zip(documents, values(f"from_json(s, 'v {kind}').v", s=texts), strict=True):
            fits = isinstance(document, of) and (kind == "BOOLEAN" or not isinstance(document, bool))
            if kind == "STRING":
                assert (found is None) == (document is None) and (not fits or found == document)
            elif kind == "BIGINT" and fits and not -(2**63) <= document < 2**63:
                assert found is None
            elif kind == "DOUBLE" and isinstance(document, str):
                assert found is None or document in ("NaN", "Infinity", "-Infinity", "INF", "+INF", "-INF")
            elif kind == "DOUBLE" and fits:
                assert found == float(document)
            else:
                assert found == (document if fits else None)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_written_is_the_double_and_has_its_point(value: float) -> None:
    text = format_double(value)
    assert float(text) == value and "." in text and ("E" in text) == (value != 0 and not 1e-3 <= abs(value) < 1e7)


def test_json_has_limits_that_do_not_depend_on_the_stack() -> None:
    deep = ["[" * n + "]" * n for n in (MOST_NESTED, MOST_NESTED + 1, 100_000)]
    strings = ['{"a": "' + "[" * 5000 + '"}']

    def far(levels: int) -> Any:
        return values("get_json_object(s, '$')", s=[*deep, *strings]) if levels == 0 else far(levels - 1)

    for levels in (0, 800):
        found = far(levels)
        assert found[0] == deep[0] and found[1:3] == [None, None] and found[3] == strings[0].replace(" ", "")
    with raises(ExpressionError):
        values("get_json_object(s, '$')", s=['"' + "x" * MOST_TEXT + '"'])
    assert values("from_json(s, 'a INT').a", s=["[" * 100_000]) == [None]


REFUSED = {
    "get_json_object(s, '$.a[*]')": "not a path that get_json_object accepts; .* unnest it",
    "get_json_object(s, 'a.b')": r"write \$, then",
    "get_json_object(s, s)": "not a text literal",
    "from_json(s, 'a TINYINT')": "TINYINT in the shape of from_json is not supported; the types are INT",
    "from_json(s, 'a INT, a INT')": "names a field twice",
    "from_json(s, 'a ARRAY<STRUCT<b: INT>>')": "use arrays of plain types",
    "from_json(s, 'a " + "STRUCT<a:" * 20 + "INT" + ">" * 20 + "')": "more than 16 levels",
    "from_json(s, 'a DECIMAL(50,2)')": "use 1 to 38 digits",
    "split(s, 'x*')": "matches an empty text",
    "date_format(t, 'yyyy w')": "'w' in the pattern of date_format is not supported; the letters are",
    "date_format(t, '[yyyy]')": "is not supported",
    "t + interval 1 month 2 days": "mixes months with days",
    "t + interval n days": "is not a literal; write n . interval 1 day",
    "t + interval '1 fortnight'": "is not an interval; write interval 3 days",
    "t + interval '1-13' year to month": "is not an interval",
    "interval 1 month": "an interval of months has no fixed length; add it to a date",
    "interval n day": "is not a literal; write n . interval 1 day",
    "cast(interval 1 day as bigint)": "use extract(epoch from x. for the seconds",
    "cast(n as interval)": "n . interval 1 second for a duration",
    "extract(second from interval 1 day)": "the fields are day, hour, minute, epoch .all its seconds",
    "n + interval 1 day": "cast to a date or a timestamp first",
    "(t - t) + n": "is not defined; use extract(epoch from x. for the seconds",
    "(t - t) + interval 1 month": "has no fixed length",
    "(t - t) / (t - t)": "is not defined",
    "s - t": "cast the text to timestamp, or declare its column",
    "s + interval 1 day": "string . an interval is not defined",
    "li[1:2]": "not supported",
    "li['a']": "takes an integer index",
    "from_json(s, 'a INT').b": "no field 'b'; the fields are a",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_supported_is_refused_by_name(text: str) -> None:
    schema = pa.schema({"s": pa.string(), "t": pa.timestamp("us"), "n": pa.int32(), "li": pa.list_(pa.int64())})
    with pytest.raises(ExpressionError, match=REFUSED[text].replace("(", r"\(").replace("[", r"\[")):
        compile(text, schema)


def test_ends_of_ranges_fail_and_name_the_row() -> None:
    last = pa.array([dt.date(2024, 1, 1), dt.date(9999, 12, 31)])
    with raises(ExpressionError):
        values("d + interval 9000000 years", d=last)
    top = pa.array([0, 2**63 - 1]).view(pa.timestamp("us"))
    with raises(ExpressionError):
        values("t + interval 1 day", t=top)
    with raises(ExpressionError):
        values("x[3]", x=pa.array([None, [1, 2]], pa.list_(pa.int64())))
    assert values("t + interval 1 month", t=pa.array([10**18 + 1]).view(pa.timestamp("ns")))[0].year == 2001


def flow() -> Any:
    return dd.Flow().upserts("orders", {"id": int, "city": str, "the amount": float}, dd.Upsert("id"))


def test_expressions_of_other_libraries_are_told_the_sql_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = flow()
    with raises(ExpressionError):
        mine.filter(pl.col("city") == "Bern")
    with raises(ExpressionError):
        mine.filter(pl.col("the amount") > 5)
    for columns in (pl.col("city"), [pl.col("city")], {"up": pl.col("city").str.to_uppercase()}):
        with raises(ExpressionError):
            mine.project(columns)
    column = object.__new__(Column)
    monkeypatch.setattr(type(column), "__repr__", lambda _: "Column<'(id > 5)'>")
    with raises(ExpressionError):
        mine.filter(column)


@pytest.mark.parametrize("zone", ["Europe/Zurich", "Africa/Casablanca", "Australia/Lord_Howe", "America/Sao_Paulo"])
@pytest.mark.parametrize("knows_until", [2002, 2037])
def test_zones_are_those_of_zoneinfo(zone: str, knows_until: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Arrow reads fewer rules of the machine's database than there are."""
    ends = (dt.datetime(knows_until, 1, 1) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    monkeypatch.setattr(date_functions, "_find_zone_rules_end", lambda _: ends)
    pick, of = random.Random(7), ZoneInfo(zone)
    days = [(pick.choice(years), pick.randint(1, 12), pick.randint(1, 28)) for years in YEARS for _ in range(500)]
    times = [dt.datetime(*day, pick.randint(0, 23), pick.choice((0, 30, 45))) for day in days]
    column = pa.array([*times, None])
    shown = values(f"from_utc_timestamp(t, '{zone}')", t=column)
    assert shown[:-1] == [t.replace(tzinfo=dt.UTC).astimezone(of).replace(tzinfo=dt.UTC) for t in times]
    instants = values(f"to_utc_timestamp(t, '{zone}')", t=column)
    assert instants[:-1] == [t.replace(tzinfo=of).astimezone(dt.UTC) for t in times]
    assert shown[-1] is instants[-1] is None


def test_a_zone_is_a_literal_that_is_known() -> None:
    column = pa.array(["2024-01-01"])
    for zone in ("Europe/Zurihc", "PST", "+2", "europe/zurich", "../passwd", ""):
        with raises(ExpressionError):
            values(f"from_utc_timestamp(t, '{zone}')", t=column)
    with raises(ExpressionError):
        values("to_utc_timestamp(t, t)", t=column)
    with raises(ExpressionError):
        values("from_utc_timestamp(t, 'UTC')", t=pa.array([2**60], pa.timestamp("us")))

"""Test every supported construct beside PySpark: the same expression on the same rows gives the same type and values.

The rows have difficult values: nulls, NaN, infinities, both zeros, halves, ends of ranges, letters with longer case
variants, times before 1970. Expressions that fail in Spark at run time (overflow, division by zero, malformed text)
must fail here; those that Spark refuses to analyse must be refused.

``golden/expressions.json`` keeps Spark's answers, and a test marked ``soak`` asks Spark again. Run this file as a
program to record them, which a new or changed case needs.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

from ddflow.errors import ExpressionError
from ddflow.expressions import compile

NAN, INF = math.nan, math.inf
DAY, AT = datetime.date, datetime.datetime


def decimals(precision: int, scale: int, *texts: str | None) -> pa.Array:
    return pa.array(texts, pa.string()).cast(pa.decimal128(precision, scale))


TIMES = [
    AT(2024, 2, 29, 12, 34, 56, 789000),
    AT(1969, 12, 31, 23, 59, 59, 500000),
    None,
    AT(2024, 12, 30),
    AT(1970, 1, 1),
    AT(2021, 1, 3, 5),
    AT(1999, 12, 31, 23, 59, 59, 999999),
    AT(2000, 3, 1, 0, 0, 1),
]
LISTS = pa.list_(pa.list_(pa.int32()))
STRUCTS = pa.list_(pa.struct({"x": pa.int32(), "y": pa.string()}))
ROWS = pa.table(
    {
        "i": pa.array([1, -7, None, 0, 1000000007, 15, -15, 7], pa.int32()),
        "j": pa.array([3, 2, 1, None, -3, 10, -10, 5], pa.int32()),
        "l": pa.array([2, -9223372036854775807, 5, None, 9007199254740993, 0, 25, -25], pa.int64()),
        "si": pa.array([3, -3, None, 0, 250, 1, 2, 4], pa.int16()),
        "ti": pa.array([4, -4, None, 0, 127, 1, 2, 5], pa.int8()),
        "f": pa.array([1.5, -2.5, None, NAN, 0.1, -0.0, 16777216.0, 2.675], pa.float32()),
        "d": pa.array([2.5, -2.5, None, NAN, INF, -0.0, 2.675, 1e15], pa.float64()),
        "e": pa.array([2.5, NAN, 1.0, NAN, -INF, 0.0, None, 1.005], pa.float64()),
        "n": decimals(10, 2, "3.25", "-3.25", None, "0.00", "99999999.99", "2.50", "-0.05", "7.77"),
        "m": decimals(12, 3, "1.125", "-2.000", "5.000", None, "0.001", "2.500", "3.333", "-0.700"),
        "s": pa.array(["abc", "", None, "Straße", "a_c", "ΟΔΟΣ", " a%c\t ", "héllo\nworld"]),
        "t": pa.array(["abd", "a", "z", None, "A_C", "οδος", "x", "hé"]),
        "num": pa.array(["7", " -12 ", None, "+5", "0", "000123", "9", "-1"]),
        "real": pa.array(["7", " -1.5e2 ", None, ".5", "5.", "1d", "-Infinity", "NaN"]),
        "odd": pa.array(["1.5", "x", None, "99999999999", "", "0x10", "2024-1-5", "t"]),
        "day": pa.array(["2024-02-29", "2024-1-5", None, "2023", "1969-12-31T10", "2024-03-03", "2000-2", "1999-9-9"]),
        "b": pa.array([True, False, None, True, False, None, True, False]),
        "c": pa.array([True, True, True, False, False, False, None, None]),
        "dt": pa.array(
            [
                DAY(2024, 2, 29),
                DAY(1969, 12, 31),
                None,
                DAY(2023, 1, 1),
                DAY(1970, 1, 1),
                DAY(2024, 3, 3),
                DAY(1900, 1, 1),
                DAY(2000, 12, 31),
            ]
        ),
        "ts": pa.array(TIMES, pa.timestamp("us", "UTC")),
        "tn": pa.array(TIMES[::-1], pa.timestamp("us")),
        "st": pa.array(
            [{"x": 1, "Y": "q"}, {"x": None, "Y": "r"}, None, {"x": 3, "Y": None}] * 2,
            pa.struct({"x": pa.int32(), "Y": pa.string()}),
        ),
        "bin": pa.array([b"abc", b"", None, b"\xff", b"a", b"b", b"\x00", b"abc"]),
        "csv": pa.array(["a,b,,c,", "", None, "x1y22z", ",a", "é|ü", "no", "p;q,r"]),
        "li": pa.array([[1, 2], [None], None, [7], [3, 4, 5], [0, 9], [8], [6, 1]], pa.list_(pa.int32())),
        "lists": pa.array([[[1, 2]], [[3]], None, [[5, None]], [[6], []], [[7]], [[8]], [[9]]], LISTS),
        "sl": pa.array([[{"x": 1, "y": "p"}], [{"x": None, "y": "q"}], None, *[[{"x": 3, "y": None}]] * 5], STRUCTS),
        "js": pa.array(
            [
                '{"a": [1, {"b": "x"}], "c d": 3}',
                '{"a": {"b": {"c": 1.50}}, "é": "\\u00e9/\\n"}',
                None,
                '{"a": 1, "b"',
                "{'a': 'it\\'s'} and more",
                '[1, {"a": 2}]',
                '{"a": null, "a": 7, "a": [true, {"b": {"c": 1e3}}]}',
                " ",
            ]
        ),
        "jt": pa.array(
            [
                '{"a": "x\\"y", "n": 7, "x": 1.5, "t": true, "d": "2024-02-29", "w": "2024-02-29T12:00:00Z",'
                ' "l": [1, null]}',
                '{"a": {"k": [1, 2.50]}, "n": 1.5, "x": 2, "t": 1, "d": "2024-2-9", "w": 60,'
                ' "l": [1, "x"], "m": ["p", 1]}',
                '{"a": null, "n": "7", "x": "NaN", "t": null, "d": "x", "w": "x", "l": 1, "o": {"p": 1, "q": "r"}}',
                '{"n": 3000000000, "x": 1e400, "z": "2024-02-29 12:00:00.5", "l": [], "o": {"p": "1", "q": 2}}',
                '{"n": 9223372036854775808, "x": "Infinity", "N": 4, "o": [1], "m": [null, "s"]}',
                '{"n": -0, "x": -0.0, "a": 12345678901234567890123, "o": null, "n": 5}',
                "[1]",
                '{"n": 12.345, "a": [], "x": 1e-7, "l": [[1]], "o": {}, "t": "true"} trailing',
            ]
        ),
    }
)
BATCH = ROWS.combine_chunks().to_batches()[0]


GOLDEN = Path(__file__).parent.with_name("golden") / "expressions.json"
CASES = Path(__file__).parent.with_name("expressions.sql").read_text()
SAME = [case.strip() for line in CASES.splitlines() if not line.startswith("--") for case in line.split(" ; ")]

FAIL = """
l + 9223372036854775807 ; i + 2000000000 ; i * 1000 ; ti + 100Y ; -cast(-2147483648 as int) ; abs(-2147483648) ; l * l
i / 0 ; l / (j - 1) ; d / 0 ; 10 % i ; d % 0 ; n / 0 ; n % 0 ; i div 0 ; pmod(i, 0) ; -9223372036854775808 div -1
n * 9999999999 * 9999999999 * 9999999999 * 999999999 ; cast(n as decimal(4,1)) ; cast(s as int) ; s = 1 ; num + i + s
cast(odd as int) ; cast(odd as double) ; cast(odd as boolean) ; cast(odd as date) ; cast(odd as timestamp)
cast(l as int) ; cast(d as int) ; cast(d as bigint) ; cast(d as decimal(5,2)) ; cast(i as tinyint)
cast('2024-02-30' as date) ; year(s) ; cast('' as int) ; cast('1.5' as int) ; cast('9223372036854775808' as bigint)
floor(d) ; b = s ; round(cast(2147483647 as int), -1) ; coalesce(null, 1 / 0)
if(b, 1 / 0, 1) ; i in (1, cast(s as int)) ; greatest(i, 1 / 0) ; case when i > 100 then 1 else 1 div 0 end
cast(n * 1000 as smallint) ; to_date(odd) ; hour(s) ; cast(m as decimal(3,3))
split(csv, ',')[1] ; li[1] ; li[-1] ; element_at(li, 0) ; element_at(li, 3) ; li[i]
dt + interval 9000000 years ; date_format(odd, 'yyyy')
"""
REFUSED = """
b = 1 ; dt > 5 ; i and b ; not i ; if(i, 1, 2) ; case when i then 1 end ; b + 1 ; s + s ; d div 2 ; dt + l ; dt = 1.5
cast(dt as int) ; cast(i as date) ; cast(b as timestamp) ; cast(dt as boolean) ; cast(i as binary) ; upper()
upper(s, s) ; coalesce() ; greatest(i) ; greatest(s, i) ; least(dt, 1) ; date_add(dt, l) ; date_add(dt, 1.5) ; year(i)
nothing(i) ; missing ; i.x ; st.z ; i = ; (i ; i j k ; sum(i) over () ; i is true ; hour(i) ; i & d ; ~d ; concat_ws()
nvl(i) ; case i end ; s like 'a!b' escape '!' ; regexp_extract(s, '(b)', 3) ; coalesce(i, b) ; b in (1) ; i in ()
between 1 and 2 ; i + interval 1 day ; b - interval 1 month ; dt + interval 1 month 2 days ; interval 1 day - dt
i[0] ; li['a'] ; li[1.0] ; st[0] ; get(s, 1) ; get(li) ; date_format(i, 'yyyy')
get_json_object(js) ; dt + interval 1 fortnight
from_json(js, 'a') ; from_json(js, 'a INTT') ; from_json(js, 'a INT,') ; from_json(js, 'a ARRAY<INT') ; from_json(js, s)
"""


def split(text: str) -> list[str]:
    return [case.strip() for line in text.strip().splitlines() for case in line.split(" ; ")]


def named(kind: Any) -> str:
    """A type's name, whatever the elements of its lists are called, and whether they may be null."""
    return str(kind).replace("<element: ", "<item: ").replace(" not null", "")


def plain(column: pa.Array) -> list[Any]:
    """A column's values as JSON has them: equal where ours and Spark's are."""
    return [canonical(value) for value in column.to_pylist()]


def canonical(value: Any) -> Any:
    """NaN and the infinities as texts; -0.0 as 0.0, for they are equal; what JSON has not by its text."""
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else repr(value)
    if isinstance(value, list):
        return [canonical(each) for each in value]
    if isinstance(value, dict):
        return {name: canonical(each) for name, each in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, DAY | AT):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def ask() -> dict[str, Any]:
    """What Spark says of all cases, over the rows in one partition, in the zone that expressions are defined in."""
    import pyspark
    from pyspark.errors import PySparkException
    from spark_session import stop_shared

    from spark_bridge.session import local_session

    def raised(make: Callable[[], Any]) -> str:
        """Why Spark does not compute a frame."""
        with pytest.raises(PySparkException) as caught:
            make().toArrow()
        return str(caught.value.getCondition())

    stop_shared()
    with local_session("expressions", cores=1) as spark:
        spark.sparkContext.setLogLevel("OFF")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.timestampType", "TIMESTAMP_LTZ")
        spark.conf.set("spark.sql.codegen.wholeStage", "false")  # hundreds of expressions at once are no stage
        spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        assert spark.conf.get("spark.sql.ansi.enabled") == "true"
        wall = ROWS.column("tn").cast(pa.timestamp("us", "UTC"))
        frame = spark.createDataFrame(ROWS.set_column(ROWS.schema.get_field_index("tn"), "tn", wall)).coalesce(1)
        frame = frame.withColumn("tn", frame["tn"].cast("timestamp_ntz"))
        table = frame.selectExpr(*(f"{case} AS c{number}" for number, case in enumerate(SAME))).toArrow()
        same = {case: [str(column.type), plain(column)] for case, column in zip(SAME, table.columns, strict=True)}
        fail = {case: raised(lambda case=case: frame.selectExpr(f"{case} AS c")) for case in split(FAIL)}
        refused = {}
        for case in split(REFUSED):
            refused[case] = raised(lambda case=case: frame.selectExpr(f"{case} AS c").filter(f"{case} IS NOT NULL"))
    return {"spark": pyspark.__version__, "rows": digest(), "same": same, "fail": fail, "refused": refused}


def digest() -> str:
    """Which rows the answers are for."""
    return hashlib.sha256(json.dumps([plain(column) for column in ROWS.columns]).encode()).hexdigest()[:16]


def record() -> None:
    """Ask Spark and keep what it says, a case a line."""
    told = ask()
    lines = []
    for name, value in told.items():
        if isinstance(value, dict):
            cases = (f"{json.dumps(case)}: {json.dumps(answer)}" for case, answer in value.items())
            lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(cases) + "\n}")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


TOLD: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def test_what_spark_said_is_kept_of_every_case_over_these_rows() -> None:
    anew = "run PYTHONPATH=tests:tests/support python tests/spark/test_expressions_spark.py, which asks Spark anew"
    assert len(SAME) == len(set(SAME)) > 400 and len(split(FAIL)) > 40
    assert [list(TOLD["same"]), list(TOLD["fail"]), list(TOLD["refused"])] == [SAME, split(FAIL), split(REFUSED)], anew
    assert TOLD["rows"] == digest(), anew


@pytest.mark.soak
def test_spark_says_what_was_kept(alone: None) -> None:
    now = json.loads(json.dumps(ask()))
    for kind in ("same", "fail", "refused"):
        assert {case: said for case, said in now[kind].items() if said != TOLD[kind][case]} == {}, kind


@pytest.mark.parametrize("case", SAME)
def test_an_expression_gives_what_spark_gives(case: str) -> None:
    kind, values = TOLD["same"][case]
    compiled = compile(case, BATCH.schema)
    ours = compiled(BATCH)
    ours.validate(full=True)
    assert ours.type == compiled.type and named(ours.type) == named(kind)
    assert json.loads(json.dumps(plain(ours))) == values


@pytest.mark.drawn(100)
@pytest.mark.parametrize("case", SAME)
def test_a_row_alone_gives_what_it_gives_among_others(case: str) -> None:
    compiled = compile(case, BATCH.schema)
    whole = plain(compiled(BATCH))
    assert [plain(compiled(BATCH.slice(row, 1)))[0] for row in range(len(whole))] == whole
    assert len(compiled(BATCH.slice(0, 0))) == 0


@pytest.mark.parametrize("case", split(FAIL))
def test_what_spark_fails_on_at_run_time_fails_here(case: str) -> None:
    compiled = compile(case, BATCH.schema)
    with raises(ExpressionError):
        compiled(BATCH)


@pytest.mark.parametrize("case", split(REFUSED))
def test_what_spark_refuses_to_analyse_is_refused_here(case: str) -> None:
    with raises(ExpressionError):
        compile(case, BATCH.schema)


if __name__ == "__main__":
    record()

"""Test compiled expressions: columns, types, encodings, laziness, and kinds other than SQL.

``test_expressions_spark`` compares results with PySpark, ``test_expressions_law`` with a row-wise evaluator. Messages
are in ``test_expressions_errors``.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from messages import raises

from ddflow.errors import ExpressionError, SchemaMismatch, SpecError
from ddflow.expressions import Expression, compile

BATCH = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, 4]),
        "status": pa.array(["paid", None, "open", "paid"]),
        "amount": pa.array([250, 900, 7, None]),
        "Rate": pa.array([0, 2, None, 5], pa.int32()),
        "at": pa.array([{"x": 1, "y.z": "a"}, None, {"x": 3, "y.z": None}, {"x": None, "y.z": "d"}]),
        "a.b": pa.array([1.5, None, 2.5, 3.5]),
    }
)
SCHEMA = BATCH.schema


def values(text: Any, batch: pa.RecordBatch = BATCH, **options: Any) -> list[Any]:
    result: list[Any] = compile(text, batch.schema, **options)(batch).to_pylist()
    return result


def refusal(text: Any, batch: pa.RecordBatch = BATCH, **options: Any) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        compile(text, batch.schema, **options)
    return caught.value


def failure(text: Any, batch: pa.RecordBatch = BATCH, **options: Any) -> ExpressionError:
    compiled = compile(text, batch.schema, **options)
    with pytest.raises(ExpressionError) as caught:
        compiled(batch)
    return caught.value


# What a compiled expression is


def test_an_expression_knows_its_text_type_and_the_columns_it_reads_in_order_of_first_mention() -> None:
    compiled = compile("amount > 1 and status = 'paid' or amount < id", SCHEMA, boolean=True)
    assert isinstance(compiled, Expression)
    assert compiled.columns == ("amount", "status", "id")
    assert compiled.type == pa.bool_()
    assert compiled.text == compiled.to_json() == "amount > 1 and status = 'paid' or amount < id"


def test_an_expression_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        compile("id", SCHEMA).text = "amount"  # type: ignore[misc]


def test_a_bare_column_is_the_column_itself_in_its_own_type() -> None:
    kinds = [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string()]
    for kind in kinds:
        batch = pa.record_batch({"s": pa.array(["a", None, "b"]).cast(kind)})
        compiled = compile("(s)", batch.schema)
        assert compiled.type == kind
        assert compiled(batch).equals(batch.column(0))


def test_a_constant_is_spread_over_the_rows() -> None:
    assert values("1 = 1") == [True] * 4
    assert values("'x'") == ["x"] * 4
    assert values("null") == [None] * 4
    assert compile("null", SCHEMA, boolean=True).type == pa.bool_()
    assert values("1 + 1", BATCH.slice(0, 0)) == []


def test_other_columns_and_another_order_of_columns_do_not_matter() -> None:
    compiled = compile("amount + id", SCHEMA)
    assert compiled(BATCH.select(["status", "amount", "id"])).to_pylist() == [251, 902, 10, None]


def test_a_batch_without_a_column_or_with_another_type_is_refused() -> None:
    compiled = compile("amount + id", SCHEMA)
    with raises(SchemaMismatch):
        compiled(BATCH.select(["id"]))
    with raises(SchemaMismatch):
        compiled(BATCH.set_column(2, "amount", pa.array([1.0] * 4)))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.large_string())]
)
def test_every_encoding_of_text_gives_the_same(kind: pa.DataType) -> None:
    batch = pa.record_batch({"s": pa.array(["b", None, "ab"]).cast(pa.string()).cast(kind), "t": ["b", "b", "b"]})
    assert values("s = t and s in ('b', 'c') and upper(s) like 'B%'", batch) == [True, None, False]
    assert values("coalesce(s, t)", batch) == ["b", "b", "ab"]


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8(), pa.float16()])
def test_every_width_of_number_is_computed_with(kind: pa.DataType) -> None:
    batch = pa.record_batch({"n": pa.array([1, None, 100]).cast(pa.float32()).cast(kind)})
    assert values("n + 1 > 50", batch) == [False, None, True]


def test_the_greatest_unsigned_number_keeps_its_value() -> None:
    batch = pa.record_batch({"n": pa.array([2**64 - 1], pa.uint64())})
    assert values("n > 9223372036854775807 and n = 18446744073709551615", batch) == [True]


def test_times_of_any_unit_and_zone_are_instants_of_utc() -> None:
    noon = datetime.datetime(2024, 7, 1, 12)
    for unit in ("s", "ms", "us", "ns"):
        batch = pa.record_batch({"t": pa.array([noon, None]).cast(pa.timestamp(unit, "Europe/Berlin"))})
        assert values("hour(t)", batch) == [12, None]
        assert values("t = timestamp'2024-07-01 12:00:00'", batch) == [True, None]
        assert values("cast(t as string)", batch) == ["2024-07-01 12:00:00", None]


def test_decimals_of_other_widths_are_computed_with() -> None:
    batch = pa.record_batch({"n": pa.array(["1.50", None]).cast(pa.decimal256(12, 2))})
    assert values("n * 2 = 3", batch) == [True, None]


def test_decimals_and_integers_without_a_type_in_common_are_compared_exactly() -> None:
    texts = ["3.000000000000000000000000000001", "3", None]
    exact = pa.array([None if each is None else decimal.Decimal(each) for each in texts], pa.decimal128(38, 30))
    wide = pa.array(["3", "999999999999999999999999999999999999.99", "9"]).cast(pa.decimal128(38, 2))
    batch = pa.record_batch({"i": pa.array([3, 3, 3]), "exact": exact, "wide": wide})
    assert values("i = exact", batch) == [False, True, None]
    assert values("i < exact", batch) == [True, False, None]
    assert values("wide >= exact", batch) == [False, True, None]
    assert values("exact in (i, wide)", batch) == [False, True, None]


def test_an_expression_may_be_called_by_several_threads_at_once() -> None:
    compiled = compile("case when Rate <> 0 then amount / Rate end", SCHEMA)
    found: list[list[Any]] = []
    threads = [threading.Thread(target=lambda: found.append(compiled(BATCH).to_pylist())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[None, 450.0, None, None]] * 8


def test_importing_brings_no_numba_no_spark_and_no_pandas() -> None:
    code = "import ddflow.expressions, sys; print([m for m in ('numba', 'pyspark', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Names


def test_names_match_exactly_first_and_else_in_any_case() -> None:
    batch = pa.record_batch({"a": [1], "A": [2], "Bee": [3]})
    assert values("a", batch) == [1]
    assert values("A", batch) == [2]
    assert values("bEE", batch) == [3]
    assert compile("bEE + a", batch.schema).columns == ("Bee", "a")


def test_a_name_that_could_be_two_columns_is_refused() -> None:
    batch = pa.record_batch({"ab": [1], "AB": [2]})
    assert "may be any of 'ab', 'AB'" in refusal("Ab", batch).found
    twice = pa.record_batch([pa.array([1]), pa.array([2])], names=["x", "x"])
    assert "may be any of 'x', 'x'" in refusal("x", twice).found


def test_fields_of_structs_are_reached_by_dots_and_dots_in_names_by_backquotes() -> None:
    assert values("at.x") == [1, None, 3, None]
    assert values("AT.X + 1") == [2, None, 4, None]
    assert values("at.`y.z`") == ["a", None, None, "d"]
    assert values("`a.b` > 2") == [False, None, True, True]
    assert compile("at.x > id", SCHEMA).columns == ("at", "id")
    assert "no field 'q'" in refusal("at.q").found
    assert "no fields" in refusal("id.x").found
    assert "write `a.b` in backquotes" in refusal("a.b").fix


def test_names_that_are_words_of_sql_work_in_backquotes() -> None:
    batch = pa.record_batch({"select": [1], "from": [2], "order": [3], "date": [4], "key": [5], "value": [6]})
    assert values("`select` + `from`", batch) == [3]
    assert values("date + key + value + order", batch) == [18]


# Laziness


def test_a_row_is_not_failed_by_a_branch_it_does_not_take() -> None:
    assert values("if(Rate = 0, -1, amount / Rate)") == [-1.0, 450.0, None, None]
    assert values("case when Rate > 0 then 10 div Rate when Rate = 0 then 0 else 1 div 0 end", BATCH.slice(0, 2)) == [
        0,
        5,
    ]
    assert values("Rate <> 0 and 10 / Rate > 3") == [False, True, None, False]
    assert values("Rate = 0 or 10 / Rate > 3") == [True, True, None, False]
    assert values("coalesce(status, cast(status as int))", BATCH.slice(1, 1)) == [None]
    assert values("nvl(amount, 1 div (id - id))", BATCH.slice(0, 3)) == [250, 900, 7]


def test_a_row_is_failed_by_the_branch_it_takes() -> None:
    assert "row 0: Rate = 0" in failure("if(Rate = 0, 1 / Rate, 5)").found
    assert "row 3" in failure("coalesce(amount, 1 div (id - 4))").found
    assert "row 0" in failure("10 / Rate > 3 and Rate <> 0").found


def test_lazy_branches_nest() -> None:
    inner = "case when id = 3 then 1 else amount div (amount - 900) end"
    assert values(f"case when Rate = 0 then 0 else if(amount = 900, 0, {inner}) end") == [0, 0, 1, None]


# Other kinds of expression


def test_a_pyarrow_expression_gives_an_array_in_order() -> None:
    rows = 200_000
    batch = pa.record_batch({"n": pa.array(np.arange(rows))})
    compiled = compile(pc.field("n") * 2, batch.schema)
    result = compiled(batch)
    assert isinstance(result, pa.Array)
    assert compiled.text is None and compiled.columns is None
    assert result.equals(pa.array(np.arange(rows) * 2))


def test_a_pyarrow_expression_that_fits_nothing_is_refused() -> None:
    assert "columns are" in refusal(pc.field("nope") > 1).fix
    assert "not boolean" in refusal(pc.field("id") + 1, boolean=True).found
    assert "overflow" in failure(pc.field("id") + pa.scalar(2**63 - 1)).found


@pytest.mark.parametrize(
    "function",
    [
        lambda batch: pc.greater(batch.column("id"), 2),
        lambda batch: pa.chunked_array([pc.greater(batch.column("id"), 2)]),
        lambda batch: batch.column("id").to_numpy() > 2,
    ],
)
def test_a_function_over_a_batch_may_give_any_array(function: Callable[[pa.RecordBatch], Any]) -> None:
    compiled = compile(function, SCHEMA, boolean=True)
    assert isinstance(compiled(BATCH), pa.Array)
    assert compiled(BATCH).to_pylist() == [False, False, True, True]
    assert compiled.columns is None and compiled.text is None


def test_a_function_may_give_a_scalar_for_all_rows() -> None:
    assert values(lambda batch: pa.scalar(7)) == [7] * 4


def test_a_function_that_gives_no_array_or_the_wrong_length_is_an_error() -> None:
    assert "a NoneType for no rows" in refusal(lambda batch: None).found
    assert "a list for no rows" in refusal(lambda batch: [1]).found
    message = str(failure(lambda batch: pa.array([1] * (batch.num_rows // 2)), what="projection of 'half'"))
    assert message.startswith("cannot compute projection of 'half': the function returned 2 values for 4 rows; ")


def test_a_function_that_changes_its_type_or_takes_no_empty_batch_is_an_error() -> None:
    assert (
        "returned double, but bigint"
        in failure(lambda b: pa.array([1.5] * b.num_rows, None if b.num_rows else pa.int64())).found
    )
    assert "raised IndexError for a batch without rows" in refusal(lambda batch: batch.column(0)[0]).found


def test_an_error_that_a_users_function_raises_is_the_users_own() -> None:
    compiled = compile(lambda batch: pa.array([1 // (4 - batch.num_rows)] * batch.num_rows), SCHEMA)
    with pytest.raises(ZeroDivisionError):
        compiled(BATCH)


def test_functions_and_pyarrow_expressions_have_no_json_form() -> None:
    for given in (lambda batch: batch.column(0), pc.field("id")):
        with raises(SpecError):
            compile(given, SCHEMA, what="filter of 'x'").to_json()


def test_what_is_no_expression_is_refused() -> None:
    assert refusal(7, what="filter of 'x'").found == "it is int"

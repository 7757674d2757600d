"""Test refusals of expressions and their messages: the place, the finding, the fix.

These tests cover the refusals that users meet. ``test_expressions_spark`` compares refusals that Spark shares.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

from ddflow.errors import ExpressionError
from ddflow.expressions import compile
from ddflow.expressions.functions import table
from ddflow.expressions.functions.table import FUNCTIONS

BATCH = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, 4]),
        "status": pa.array(["paid", None, "open", "paid"]),
        "amount": pa.array([250, 900, 7, None]),
        "at": pa.array([{"x": 1}, None, {"x": 3}, {"x": None}]),
        "rate": pa.array([1.5, None, 2.5, 3.5]),
    }
)


def refusal(text: Any, batch: pa.RecordBatch = BATCH, **options: Any) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        compile(text, batch.schema, **options)
    return caught.value


def failure(text: Any, batch: pa.RecordBatch = BATCH, **options: Any) -> ExpressionError:
    compiled = compile(text, batch.schema, **options)
    with pytest.raises(ExpressionError) as caught:
        compiled(batch)
    return caught.value


def test_every_message_says_where_what_was_found_and_what_to_do() -> None:
    error = refusal("stauts = 'paid'", what="filter of 'paid'")
    assert error.asked == "cannot compile filter of 'paid' stauts = 'paid'"
    assert error.found == "there is no column 'stauts'"
    assert error.fix.startswith("did you mean 'status'? the columns are 'id', 'status', 'amount', 'at'")


def test_a_text_that_does_not_parse_is_shown_with_a_caret() -> None:
    error = refusal("status = 'paid' and\namount > 5 6")
    assert "line 2, column 12" in error.found
    shown, caret = error.found.splitlines()[1:3]
    assert shown.strip() == "amount > 5 6"
    assert shown[caret.index("^")] == "6"


REFUSALS = {
    "": "empty",
    "   ": "empty",
    "status = 'paid": "close every quote",
    "id id2": "does not parse at line 1, column 4",
    "id as x": "without AS",
    "upper(status as x)": "omit AS",
    "id; amount": "several expressions",
    "select id": "does not parse",
    "(select 1)": "subquery",
    "exists(select 1)": "subquery",
    "id in (select 1)": "subquery",
    "sum(amount)": "reads several rows",
    "count(*)": "reads several rows",
    "max(amount) over (partition by id)": "window function",
    "row_number()": "reads several rows",
    "rand() > 0.5": "differs from call to call",
    "current_date": "is the clock, which is no value of a row",
    "now()": "is the clock, which is no value of a row",
    "explode(status)": "several rows from one",
    "uper(status)": "did you mean upper",
    "wholly_unknown(id)": "the functions are abs, array, bigint",
    "upper()": "upper takes 1 argument, but this call has 0",
    "round(1, 2, 3)": "round takes 1 to 2 arguments",
    "*": "all columns",
    "at.*": "names several columns",
    "status + status": "string + string is not defined",
    "status > date'2024-01-01' and id": "AND needs a boolean",
    "at = at": "no function computes this",
    "amount = true": "no common type for bigint, boolean",
    "cast(rate as string)": "cast to a decimal first",
    "cast(id as date)": "bigint cannot be cast to date",
    "cast(id as interval)": "bigint cannot be cast to duration",
    "cast(id as decimal(40, 2))": "is not a type",
    "status like status": "not a text literal",
    "status rlike '(?=a)'": "RE2",
    "status rlike '('": "is invalid",
    "status like 'a!b' escape '!'": "the escape '!' is before 'b'",
    "status like 'a' escape 'xy'": "one character",
    "status like any ('a', 'b')": "one LIKE for each pattern",
    "substring(status, id)": "not an integer literal",
    "lpad(status, 5, 'ab')": "more than one character",
    "regexp_replace(status, 'a', '$3')": "is invalid",
    "regexp_extract(status, '(a)', 2)": "is invalid",
    "date_trunc('fortnight', status)": "units are day, hour",
    "extract(second from status)": "second(...)",
    "id + interval 1 day": "cast to a date or a timestamp first",
    "status || id + 1": "parentheses",
    "id & 1 | 2": "parentheses",
    "status = not (id = 1)": "parentheses",
    "id is nan": "isnan",
    "id between symmetric 3 and 1": "lower bound first",
    "map(1, 2)": "no function map",
    "id[0]": "takes a list",
    "1.5BD": "no column '1.5BD'",
    ":p": "not supported",
    "1" + "0" * 50: "more than 38 digits",
    "not " * 3000 + "true": "too deeply",
}


@pytest.mark.parametrize("text", REFUSALS)
def test_what_is_not_supported_is_refused_with_a_reason(text: str) -> None:
    error = refusal(text)
    assert REFUSALS[text] in f"{error.found}; {error.fix}"
    assert error.asked.startswith("cannot compile expression")


def test_a_result_that_is_not_boolean_is_refused_where_one_is_needed() -> None:
    assert "bigint, not boolean" in refusal("amount + 1", boolean=True).found
    assert "string, not boolean" in refusal("status", boolean=True).found


def test_a_failure_at_run_time_names_the_expression_and_the_first_row_that_fails() -> None:
    batch = pa.record_batch({"n": pa.array([1, 2, None, 2**63 - 1, 2**63 - 1]), "s": ["1", "2", "x", "4", "y"]})
    error = failure("n + 1", batch, what="projection of 'm'")
    assert error.asked == "cannot compute projection of 'm' n + 1"
    assert error.found == "overflow (row 3: n = 9223372036854775807)"
    assert failure("cast(s as int)", batch).found == "the string 'x' cannot be cast to int (row 2: s = x)"
    assert "try_cast" in failure("cast(s as int)", batch).fix
    assert failure("1 / 0", batch).found.endswith("(row 0)")


def test_the_documentation_lists_every_function_and_nothing_else() -> None:
    page = (Path(__file__).parents[2] / "docs" / "expressions.md").read_text()
    table = page.partition("## Functions")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z0-9_]+)\(", table)) == {
        *FUNCTIONS,
        "trim",
        "extract",
    }  # those two are syntax, not calls


@pytest.mark.parametrize("name", sorted(table._BY_NAME))
def test_what_is_said_to_do_the_same_as_a_function_elsewhere_compiles(name: str) -> None:
    assert name not in FUNCTIONS
    made = table.find_equivalent_expression(name)
    assert made is not None
    compile(made, table.COLUMNS)
    with raises(ExpressionError):
        compile(f"{name}(text)", table.COLUMNS)


@pytest.mark.parametrize("name", ["sin", "initcap", "format", "list_contains"])
def test_a_name_that_is_merely_alike_is_not_suggested(name: str) -> None:
    with raises(ExpressionError):
        compile(f"{name}(text)", table.COLUMNS)


def test_what_spark_has_and_is_not_there_says_what_to_write_instead() -> None:
    assert refusal("count_if(amount > 5)").fix.startswith("write count(*) filter (where ...)")
    median = refusal("median(amount)")
    assert (median.found, median.fix[:16]) == ("there is no aggregate median", "use array_agg(x)")
    batch = pa.record_batch({"text": ["29.02.2024"], "price": ["135,11"]})
    remedy = refusal("to_date(text, 'dd.MM.yyyy')", batch).fix
    written = remedy.partition("write ")[2]
    assert str(compile(written, batch.schema)(batch)[0]) == "2024-02-29"
    assert (
        "for a decimal comma set decimal=',' where the file is read, or cast replace(x, ',', '.')"
        in failure("cast(price as double)", batch).found
    )
    assert compile("cast(replace(price, ',', '.') as double)", batch.schema)(batch).to_pylist() == [135.11]

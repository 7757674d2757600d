"""Test limits of expressions: length of created text, length and depth of expressions, and quotes in messages.

    found = refused("repeat('x', 2000000000)")        # the size is checked before any text is created

Errors name the limit and its number, which do not depend on the caller's stack depth. Without these limits, every
case here took gigabytes or minutes, or ended in an error of Arrow or Python.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from chance import SOAK, mid_test
from messages import raises

import ddflow as dd
from ddflow.errors import CorruptState, DdflowError, ExpressionError, PlanChanged, SpecError
from ddflow.expressions import compile
from ddflow.expressions.lower import ColumnResolver, TreeCompiler
from ddflow.expressions.parse import MOST_NESTED, MOST_TEXT, MOST_TOKENS, MOST_WORDS, parse_expression
from ddflow.plan.text.codec import describe_plan, rebuild_plan

T = TypeVar("T")
BATCH = pa.record_batch(
    {"id": pa.array([1, 2, 3]), "s": ["x", "yy", None], "b": [True, False, None], "d": [1.5, -0.0, None]}
)
LARGE = pa.record_batch({"s": ["x" * 1000] * 3000})
MOST_SAID = 2_000
"""Characters of a message."""


def deep(frames: int, call: Callable[[], T]) -> T:
    """What a call gives from so many frames down."""
    return deep(frames - 1, call) if frames else call()


def refused(text: str, **options: Any) -> str:
    with pytest.raises(ExpressionError) as caught:
        compile(text, BATCH.schema, **options)
    assert len(str(caught.value)) < MOST_SAID
    return f"{caught.value.found}; {caught.value.fix}"


def failed(text: str, batch: pa.RecordBatch = BATCH) -> str:
    compiled = compile(text, batch.schema)
    with pytest.raises(ExpressionError) as caught:
        compiled(batch)
    assert len(str(caught.value)) < MOST_SAID
    return caught.value.found


def value(text: str, batch: pa.RecordBatch = BATCH) -> list[Any]:
    values: list[Any] = compile(text, batch.schema)(batch).to_pylist()
    return values


A = "a" * 100
NESTED = f"replace(replace(replace(replace('{A}', 'a', '{A}'), 'a', '{A}'), 'a', '{A}'), 'a', '{A}')"
GROWN = {
    "repeat('x', 2000000000)": "repeat would produce a constant of 2,000,000,000 bytes",
    "repeat('x', 9223372036854775807)": "repeat would produce a constant of 9,223,372,036,854,775,808 bytes",
    "lpad('x', 2000000000)": "lpad would produce a constant of 2,000,000,001 bytes",
    "rpad('x', 2000000000, 'é')": "rpad would produce a constant of 4,000,000,001 bytes",
    NESTED: "replace would produce a constant of 100,000,000 bytes",
    f"regexp_replace('{A * 20}', '', '{A * 20}')": "regexp_replace would produce a constant of 4,004,000 bytes",
    f"concat({','.join(['repeat(s, 9)', *['repeat(1, 900000)'] * 50])})": "its constants take more than",
    " || ".join(["repeat('a', 1000)"] * 2000): "its constants take more than 1,048,576 bytes",
    "case when id > 5 then repeat('x', 2000000000) end": "repeat would produce a constant",
}


@pytest.mark.parametrize("text", GROWN, ids=lambda text: text[:30])
def test_a_constant_is_weighed_before_it_is_made(text: str) -> None:
    before = pa.default_memory_pool().max_memory()
    assert GROWN[text] in refused(text)
    assert pa.default_memory_pool().max_memory() - before < 32 << 20


def test_constants_of_one_expression_are_not_those_of_another() -> None:
    for _ in range(4):
        assert value("length(repeat('x', 1000000))") == [1_000_000] * 3


OVERGROWN = {
    "repeat(s, 1000)": "repeat would produce 3,000,000,000 bytes for 3,000 rows, up to 1,000,000 for one",
    "repeat(s, 1000000000)": "repeat would produce 3,000,000,000,000,000 bytes for 3,000 rows",
    "lpad(s, 1000000)": "lpad would produce 3,003,000,000 bytes for 3,000 rows",
    "rpad(s, 2147483647)": "rpad would produce 6,442,453,941,000 bytes for 3,000 rows",
    f"replace(s, 'x', '{A * 10}')": "replace would produce 3,000,000,000 bytes for 3,000 rows",
    f"regexp_replace(s, 'x', '{A * 10}')": "regexp_replace would produce 3,003,000,000 bytes for 3,000 rows",
    "concat(s, repeat('x', 1000000))": "concat would produce 3,003,000,000 bytes for 3,000 rows",
    "s || repeat('x', 1000000)": "concat would produce 3,003,000,000 bytes for 3,000 rows",
    "concat_ws(s, repeat('x', 1000000), s)": "a literal would produce 3,000,000,000 bytes for 3,000 rows",
    "repeat('x', 1000000)": "a literal would produce 3,000,000,000 bytes for 3,000 rows",
    "if(length(s) > 5, repeat('x', 1000000), s)": "do not fit a column of a batch",
}


@pytest.mark.parametrize("text", OVERGROWN, ids=lambda text: text[:30])
def test_text_that_a_column_does_not_hold_is_an_error_of_the_function(text: str) -> None:
    found = failed(text, LARGE)
    assert OVERGROWN[text] in found
    assert "could be" not in found


def test_a_row_that_has_no_room_by_itself_is_named() -> None:
    found = failed("repeat(s, 2000000000)")
    assert found.startswith("repeat would produce 6,000,000,000 bytes for 3 rows, up to 4,000,000,000 for one")
    assert found.endswith("(row 1: s = yy)")


def test_only_rows_that_take_a_branch_need_room() -> None:
    assert value("case when id > 5 then repeat(s, 2000000000) else s end") == ["x", "yy", None]
    assert value("if(id > 5 and length(lpad(s, 2000000000)) > 5, 1, 2)") == [2, 2, 2]


def test_what_fits_is_made() -> None:
    assert value("lpad(repeat(s, 3), 7, '*')") == ["****xxx", "*yyyyyy", None]
    assert value("regexp_replace(replace(s, 'y', 'zz'), '(z+)', '[$1$1]')") == ["x", "[zzzzzzzz]", None]
    assert value("concat_ws('-', s, null, 'a')") == ["x-a", "yy-a", "a"]


ONES = "1" * 100_000
ODD = {
    ONES: "more than 38 digits",
    f"-{ONES}": "more than 38 digits",
    f"0.{ONES}": "more than 38 digits",
    f"cast(id as decimal({ONES}))": "is not a type",
    "cast(id as decimal(a))": "is not a type",
    f"s like '%{'_a' * 100_000}'": "too large",
    f"s ilike '%{'_a' * 100_000}'": "too large",
    f"s rlike '{'a' * 1_000_000}'": "too large",
    f"s = '{'a' * MOST_TEXT}'": f"4,000,006 characters, but an expression may have {MOST_TEXT:,}",
    f"id in (1{',1' * (MOST_TOKENS // 2)})": f"an expression may have {MOST_TOKENS:,}",
    "+".join(
        ["id"] * (MOST_WORDS // 2 + 1)
    ): f"100,001 names, operators and calls, but an expression may have {MOST_WORDS:,}",
    "s = '\ud800'": "a lone surrogate",
    f"cast(id as {'array<' * 500}int{'>' * 500})": "nested too deeply",
}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:20].encode("ascii", "replace").decode())
def test_what_is_too_long_or_too_large_is_told_so(text: str) -> None:
    assert ODD[text] in refused(text)


def test_zeros_are_no_digits() -> None:
    assert value(f"id + {'0' * 100_000}7") == [8, 9, 10]
    assert value(f"{'0' * 5_000}7.5") == [Decimal("7.5")] * 3


LONG = ", ".join(f"'{number:06}'" for number in range(5_000))
REPEATED = [
    f"s in ({LONG}) and stauts = 1",
    f"s in ({LONG}",
    f"s in ({LONG}) = true",
    f"s in ({LONG}) is nan",
    f"sum(id) over (partition by s in ({LONG}))",
    f"{'x' * 50_000}",
    f"{'x' * 50_000}(id)",
    f"s like '{'x' * 50_000}!' escape '!'",
    f"s like 'x' escape '{'x' * 50_000}'",
    f"s rlike '({'x' * 50_000}'",
    f"regexp_replace(s, 'x', '{'x' * 50_000}$9')",
    f"regexp_extract(s, '{'x' * 50_000}', 3)",
    f"date_trunc('{'x' * 50_000}', s)",
    f"lpad(s, 3, '{'x' * 50_000}')",
    f"'{'x' * 50_000}",
    f"id{' ' * 50_000}id id",
    f"case when id = 1 then {ONES} end",
]


@pytest.mark.parametrize("text", REPEATED, ids=lambda text: text[:20])
def test_no_message_repeats_a_whole_expression(text: str) -> None:
    refused(text, what="filter")


def test_messages_at_run_time_and_of_specs_are_short_too() -> None:
    long = f"s in ({LONG}) and "
    for text in (f"{long} 1 / 0 > 1", f"cast('{'x' * 50_000}' as int)", f"cast(s || '{'x' * 50_000}' as int)"):
        failed(text.replace("and ", "or "))
    assert len(repr(compile(f"s in ({LONG})", BATCH.schema))) < MOST_SAID
    with pytest.raises(SpecError) as caught:
        dd.Upsert(key="id", derive=[f"s in ({LONG})"])  # type: ignore[arg-type]
    assert len(str(caught.value)) < MOST_SAID


def of(**spec: Any) -> dd.Flow:
    flow = dd.Flow()
    flow.output("o", flow.upserts("s", BATCH.schema, dd.Upsert(key="id", **spec)))
    return flow


def test_errors_of_reopening_and_of_contents_do_not_repeat_them(tmp_path: Path) -> None:
    with of(where=f"s in ({LONG})").open(tmp_path / "state") as engine:
        engine.step({"s": BATCH}, 1)
    with raises(PlanChanged) as caught:
        of(where=f"s not in ({LONG})").open(tmp_path / "state")
    assert len(str(caught.value)) < MOST_SAID
    with of().open() as engine, raises(DdflowError) as out:
        engine.replace("s", BATCH, 1, scope=f"s in ({LONG})")
    assert len(str(out.value)) < MOST_SAID


@pytest.mark.parametrize(
    "text", ["length(repeat('x', 2000000000)) > 0", f"length({NESTED}) > 0", f"{ONES} > 0"], ids=len
)
def test_a_plan_that_is_merely_read_makes_no_constants(text: str) -> None:
    flow = dd.Flow()
    flow.output("o", flow.upserts("s", BATCH.schema, dd.Upsert(key="id")).filter("length(s) > 0"))
    description = describe_plan(flow)
    (made,) = (each for each in description["collections"].values() if each["op"] == "filter")
    made["predicate"]["sql"] = text
    before = pa.default_memory_pool().max_memory()
    with raises(CorruptState) as caught:
        rebuild_plan(description)
    assert pa.default_memory_pool().max_memory() - before < 32 << 20
    assert len(str(caught.value)) < MOST_SAID


# Nesting


def pairs(written: Callable[[int], str]) -> Callable[[int], str]:
    """What has two levels each time, between brackets for one more."""
    return lambda n: f"({written(n // 2)})" if n % 2 else written(n // 2)


NESTINGS: dict[str, Callable[[int], str]] = {
    "brackets": lambda n: "(" * n + "b" + ")" * n,
    "not": lambda n: "not " * n + "b",
    "bang": lambda n: "!" * n + "b",
    "not and brackets": pairs(lambda n: "not (" * n + "b" + ")" * n),
    "calls": lambda n: "upper(" * n + "s" + ")" * n + " = 'X'",
    "if": lambda n: "if(b, " * n + "b" + ", b)" * n,
    "coalesce": lambda n: "coalesce(id / id > 0, " * n + "b" + ")" * n,
    "case": lambda n: "case when b then " * n + "b" + " end" * n,
    "tests of case": lambda n: "case when " * n + "b" + " then b end" * n,
    "casts": lambda n: "cast(" * n + "id" + " as int)" * n + " = 1",
    "in": pairs(lambda n: "(b in (" * n + "b" + "))" * n),
    "substring": lambda n: "substring(" * n + "s" + ", 1, 2)" * n + " = 'x'",
    "trim": lambda n: "trim(both 'y' from " * n + "s" + ")" * n + " = 'x'",
    "extract": pairs(lambda n: "extract(day from date_add('2024-01-01', " * n + "1" + "))" * n + " > 1"),
    "ladder": pairs(lambda n: "(id + id * (id & " * n + "id" + "))" * n + " = 1 or b and not b"),
    "right": lambda n: "(id - " * n + "id" + ")" * n + " = 1",
    "lazy": lambda n: "(b and id / id > 0 and " * n + "b" + ")" * n,
}


@pytest.mark.parametrize("name", NESTINGS)
@pytest.mark.parametrize("frames", [0, 100, 850])
def test_nesting_has_one_limit_wherever_the_caller_is(name: str, frames: int) -> None:
    text = NESTINGS[name]
    assert parse_expression(text(MOST_NESTED)).nested == MOST_NESTED
    compiled = deep(frames, lambda: compile(text(MOST_NESTED), BATCH.schema))
    assert len(deep(frames, lambda: compiled(BATCH))) == 3
    found = deep(frames, lambda: refused(text(MOST_NESTED + 1)))
    assert f"an expression may have {MOST_NESTED} levels" in found


def test_signs_before_signs_are_levels_and_other_signs_are_not() -> None:
    assert value("- - -id") == [-1, -2, -3]
    assert parse_expression("1 - (2 - (3 - -4))").nested == 3
    assert "nested too deeply" in refused("- " * 3000 + "id")
    assert "nested too deeply" in refused("~ " * 3000 + "id")


CHAINS: dict[str, tuple[Callable[[int], str], Callable[[int], list[Any]]]] = {
    "and": (lambda n: " and ".join(["id > 0"] * n), lambda n: [True] * 3),
    "and that may fail": (lambda n: " and ".join(["6 / id > 0"] * n), lambda n: [True] * 3),
    "or": (lambda n: " or ".join(["id < 0"] * n), lambda n: [False] * 3),
    "or of ands": (lambda n: " or ".join(["id < 0 and b"] * n), lambda n: [False] * 3),
    "+": (lambda n: " + ".join(["id"] * n), lambda n: [n, 2 * n, 3 * n]),
    "- and *": (lambda n: "id" + " - id * 1" * n, lambda n: [1 - n, 2 - 2 * n, 3 - 3 * n]),
    "||": (lambda n: " || ".join(["s"] * n), lambda n: ["x" * n, "yy" * n, None]),
    "&": (lambda n: " & ".join(["id"] * n), lambda n: [1, 2, 3]),
    "::": (lambda n: "id" + "::bigint::int" * n, lambda n: [1, 2, 3]),
    "case": (lambda n: f"case {'when id = 9 then 1 ' * n}else 2 end", lambda n: [2, 2, 2]),
    "in": (lambda n: f"id in ({', '.join(f'id + {i}' for i in range(1, n))}, id)", lambda n: [True] * 3),
    "texts": (lambda n: " ".join(["'a'"] * n), lambda n: ["a" * n] * 3),
}


@pytest.mark.drawn(10)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("frames", [0, 850])
def test_a_chain_is_no_level_and_takes_no_stack(name: str, frames: int) -> None:
    text, expected = CHAINS[name]
    compiled = deep(frames, lambda: compile(text(1_500), BATCH.schema))
    assert deep(frames, lambda: compiled(BATCH)).to_pylist() == expected(1_500)


def test_a_state_with_a_long_filter_opens_from_deep_down(tmp_path: Path) -> None:
    flow = dd.Flow()
    source = flow.upserts("s", BATCH.schema, dd.Upsert(key="id"))
    flow.output("o", source.filter(" and ".join(["id > 1"] * 240)))
    place = str(tmp_path / "state")
    with flow.open(place) as engine:
        engine.step({"s": BATCH}, 1)
    for frames in (100, 800):
        assert deep(frames, lambda: dd.read(place, "o")).num_rows == 2

        def step(time: int) -> int:
            with flow.open(place) as engine:
                engine.step({"s": BATCH}, time)
                return engine.read("o").num_rows

        assert deep(frames, lambda time=frames: step(time)) == 2  # type: ignore[misc]


@mid_test
def test_a_plan_of_a_thousand_collections_is_read(tmp_path: Path) -> None:
    flow = dd.Flow()
    rows: Any = flow.upserts("s", BATCH.schema, dd.Upsert(key="id"))
    for number in range(500):
        rows = rows.filter(f"id > {-number}").project(["id", "s"])
    flow.output("o", rows)
    with flow.open(tmp_path / "state") as engine:
        engine.step({"s": BATCH}, 1)
        assert engine.read("o").num_rows == 3
    assert dd.read(str(tmp_path / "state"), "o").num_rows == 3


# IN


def calls(made: Callable[[], Any]) -> int:
    """Python calls within the expressions' own files."""
    counted = 0

    def seen(frame: Any, event: str, _: Any) -> None:
        nonlocal counted
        counted += event == "call" and "ddflow/expressions" in frame.f_code.co_filename

    sys.setprofile(seen)
    try:
        made()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("written", [str, lambda n: f"'{n:07}'"], ids=["numbers", "texts"])
def test_literals_of_in_are_taken_together(written: Callable[[int], str]) -> None:
    name = "id" if written is str else "s"
    tree = parse_expression(f"{name} in ({', '.join(map(written, range(20_000)))})").tree
    assert calls(lambda: TreeCompiler(ColumnResolver(BATCH.schema)).lower(tree)) < 500


def test_very_many_literals_are_found_in_any_batch() -> None:
    most = 400_000 if SOAK else 80_000
    numbers = compile(f"id in ({', '.join(map(str, range(0, most, 2)))})", BATCH.schema)
    for rows in (3, 50_000):  # a set for few rows, Arrow's hashes for many
        ids = pa.array([*range(most - 3, most - 3 + rows), None])
        found = numbers(
            BATCH.slice(0, 1).from_arrays(
                [ids, *[pa.nulls(rows + 1, f.type) for f in list(BATCH.schema)[1:]]], schema=BATCH.schema
            )
        )
        assert found.to_pylist() == [*(n < most and n % 2 == 0 for n in range(most - 3, most - 3 + rows)), None]


MIXED = [
    ("id in (1, '2', 7)", [True, True, False]),
    ("id in (1, 3000000000, -3)", [True, False, False]),
    ("id in (1, 2.0, 2.5)", [True, True, False]),
    ("id in (1.5, 1e0, 9)", [True, False, False]),
    ("id not in (1, null)", [False, None, None]),
    ("id in (id, 1)", [True, True, True]),
    ("id in (7, id - 1)", [False, False, False]),
    ("s in ('x', 'z', null)", [True, None, None]),
    ("d in (0, 1)", [False, True, None]),
    ("d in (0.0, double('nan'))", [False, True, None]),
    ("double('nan') in (1, double('nan'))", [True, True, True]),
    ("b in ('true', 'f')", [True, True, None]),
    ("date'2024-01-01' in ('2024-1-1', '2023-01-01')", [True, True, True]),
    ("null in (1, 2)", [None, None, None]),
    ("id in (12345678901234567890123456789012345678, 1)", [True, False, False]),
    ("id in (000000000001, 0000000000000000000002)", [True, True, False]),
]


@pytest.mark.parametrize(("text", "expected"), MIXED, ids=[text for text, _ in MIXED])
def test_literals_of_any_types_among_items_of_in(text: str, expected: list[Any]) -> None:
    assert value(text) == expected


def test_text_that_is_no_number_fails_whoever_asks() -> None:
    assert "'y' cannot be cast to bigint" in failed("id in ('1', 'y')")
    assert value("id > 5 and id in ('1', 'y')") == [False, False, False]


def test_compiling_in_threads_keeps_them_apart() -> None:
    texts = ["length(repeat('x', 900000)) = id", "upper(s) = 'X'", "no_such = 1"] * 8
    found: list[Any] = [None] * len(texts)

    def run(at: int) -> None:
        try:
            found[at] = value(texts[at])
        except ExpressionError as error:
            found[at] = error.found

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[False] * 3, [True, False, None], "there is no column 'no_such'"] * 8


@pytest.mark.parametrize("tiny", [5e-324, -1e-300, 1e-60, 1e-25])
def test_numbers_of_more_decimals_than_any_decimal_has_are_zero(tiny: float) -> None:
    batch = pa.RecordBatch.from_pydict({"x": [tiny, 0.5, None]})
    assert value("cast(x as decimal(10, 2))", batch) == [Decimal("0.00"), Decimal("0.50"), None]


def test_a_timestamp_beyond_its_range_is_none() -> None:
    rows = pa.record_batch(
        {
            "n": pa.array([2**62, -(2**62), 5, None]),
            "d": pa.array([300_000_000, -300_000_000, 1, None], pa.int32()).cast(pa.date32()),
        }
    )
    for column in "nd":
        found = compile(f"try_cast({column} as timestamp)", rows.schema)(rows)
        assert found.null_count == 3 and found[2].is_valid
        guarded = compile(f"case when n < 10 and n > 0 then cast({column} as timestamp) end", rows.schema)(rows)
        assert guarded.null_count == 3 and guarded[2] == found[2]
        with pytest.raises(ExpressionError):
            compile(f"cast({column} as timestamp)", rows.schema)(rows)

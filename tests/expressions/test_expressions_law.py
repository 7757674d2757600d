"""Test random boolean expressions beside a row-wise evaluator with Python's None, floats and strings.

The evaluator knows three-valued logic and Spark's order of floats, but no Arrow. An expression is drawn as a pair (SQL
text, function of a row). So the compiled columns are compared with the meaning, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import given, strategies as st

from ddflow.expressions import compile

Row: TypeAlias = dict[str, Any]
Term: TypeAlias = tuple[str, Callable[[Row], Any]]

SCHEMA = pa.schema(
    {"i": pa.int64(), "j": pa.int32(), "d": pa.float64(), "e": pa.float64(), "s": pa.string(), "t": pa.large_string()}
    | {"b": pa.bool_(), "c": pa.bool_(), "k": pa.dictionary(pa.int8(), pa.string())}
)
WORDS = ["", "a", "ab", "b%", "_", "é"]
FLOATS = [0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan]
CHOICES: dict[str, list[Any]] = (
    {name: [*range(-3, 4)] for name in "ij"}
    | {"d": FLOATS, "e": FLOATS, "s": WORDS, "t": WORDS, "k": WORDS}
    | {name: [True, False] for name in "bc"}
)
PICKS: dict[str, Callable[[Random], Any]] = {
    name: lambda random, values=values: random.choice(values) if random.randrange(6) else None
    for name, values in CHOICES.items()
}


def place(value: Any) -> Any:
    """Where a value stands in its order: NaN above all floats."""
    return (value != value, 0.0 if value != value else value) if isinstance(value, float) else value


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: place(a) == place(b),
    "<>": lambda a, b: place(a) != place(b),
    "<": lambda a, b: place(a) < place(b),
    "<=": lambda a, b: place(a) <= place(b),
    ">": lambda a, b: place(a) > place(b),
    ">=": lambda a, b: place(a) >= place(b),
}


def strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Null where any operand is."""
    return lambda *values: None if any(value is None for value in values) else function(*values)


def both(a: Any, b: Any) -> Any:
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: Any, b: Any) -> Any:
    return True if a is True or b is True else None if a is None or b is None else False


def negated(a: Any) -> Any:
    return None if a is None else not a


def any_of(tests: list[Any]) -> Any:
    found: Any = False
    for test in tests:
        found = either(found, test)
    return found


def column(name: str) -> Term:
    return name, lambda row: row[name]


def literal(text: str, value: Any) -> Term:
    return text, lambda row: value


def integers(depth: int) -> st.SearchStrategy[Term]:
    leaf = st.one_of(
        st.sampled_from("ij").map(column),
        st.integers(-3, 3).map(lambda n: literal(str(n), n)),
        st.just(literal("null", None)),
    )
    return leaf if depth == 0 else st.one_of(leaf, computed(leaf), chosen(depth, integers))


def computed(leaf: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    signs = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}

    def build(left: Term, sign: str, right: Term) -> Term:
        return f"({left[0]} {sign} {right[0]})", lambda row: strict(signs[sign])(left[1](row), right[1](row))

    return st.builds(build, st.sampled_from("ij").map(column), st.sampled_from(sorted(signs)), leaf)


def floats(depth: int) -> st.SearchStrategy[Term]:
    leaf = st.one_of(
        st.sampled_from("de").map(column),
        st.sampled_from(FLOATS).map(lambda x: literal(f"double('{x}')", x)),
        st.sampled_from([1.5, -2.0]).map(lambda x: literal(str(x), x)),
    )
    return leaf if depth == 0 else st.one_of(leaf, chosen(depth, floats))


def words(depth: int) -> st.SearchStrategy[Term]:
    leaf = st.one_of(st.sampled_from("stk").map(column), st.sampled_from(WORDS).map(lambda w: literal(f"'{w}'", w)))

    def joined(left: Term, right: Term) -> Term:
        return f"concat({left[0]}, {right[0]})", lambda row: strict(str.__add__)(left[1](row), right[1](row))

    return leaf if depth == 0 else st.one_of(leaf, st.builds(joined, leaf, leaf), chosen(depth, words))


def chosen(depth: int, of: Callable[[int], st.SearchStrategy[Term]]) -> st.SearchStrategy[Term]:
    """CASE, IF, COALESCE and NULLIF over terms of one type."""

    def case(test: Term, yes: Term, other: Term, so: Term) -> Term:
        text = f"(case when {test[0]} then {yes[0]} when {other[0]} then {so[0]} end)"
        return text, lambda row: yes[1](row) if test[1](row) else so[1](row) if other[1](row) else None

    def if_(test: Term, yes: Term, no: Term) -> Term:
        return f"if({test[0]}, {yes[0]}, {no[0]})", lambda row: yes[1](row) if test[1](row) else no[1](row)

    def coalesce(first: Term, second: Term) -> Term:
        def run(row: Row) -> Any:
            value = first[1](row)
            return second[1](row) if value is None else value

        return f"coalesce({first[0]}, {second[0]})", run

    def nullif(first: Term, second: Term) -> Term:
        def run(row: Row) -> Any:
            a, b = first[1](row), second[1](row)
            return None if strict(COMPARISONS["="])(a, b) else a

        return f"nullif({first[0]}, {second[0]})", run

    term, test = of(depth - 1), booleans(depth - 1)
    return st.one_of(
        st.builds(case, test, term, test, term),
        st.builds(if_, test, term, term),
        st.builds(coalesce, term, term),
        st.builds(nullif, term, term),
    )


def booleans(depth: int) -> st.SearchStrategy[Term]:
    leaf = st.one_of(
        st.sampled_from("bc").map(column),
        st.sampled_from([literal("true", True), literal("false", False), literal("null", None)]),
        *(comparisons(of(max(depth - 1, 0))) for of in (integers, floats, words)),
        patterns(),
    )
    return leaf if depth == 0 else st.one_of(leaf, connectives(booleans(depth - 1)), chosen(depth, booleans))


def comparisons(term: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    """Comparisons, membership, ranges and tests for null, over terms of one type."""
    equal = strict(COMPARISONS["="])

    def compare(left: Term, sign: str, right: Term) -> Term:
        return f"({left[0]} {sign} {right[0]})", lambda row: strict(COMPARISONS[sign])(left[1](row), right[1](row))

    def same(left: Term, right: Term) -> Term:
        def run(row: Row) -> bool:
            a, b = left[1](row), right[1](row)
            return (a is None and b is None) or equal(a, b) is True

        return f"({left[0]} <=> {right[0]})", run

    def among(left: Term, items: list[Term], no: bool) -> Term:
        def run(row: Row) -> Any:
            found = any_of([equal(left[1](row), item[1](row)) for item in items])
            return negated(found) if no else found

        return f"({left[0]} {'not in' if no else 'in'} ({', '.join(item[0] for item in items)}))", run

    def between(left: Term, low: Term, high: Term, no: bool) -> Term:
        def run(row: Row) -> Any:
            value = left[1](row)
            above, below = (strict(COMPARISONS[s])(value, bound[1](row)) for s, bound in ((">=", low), ("<=", high)))
            return negated(both(above, below)) if no else both(above, below)

        return f"({left[0]} {'not ' if no else ''}between {low[0]} and {high[0]})", run

    def missing(left: Term, no: bool) -> Term:
        return f"({left[0]} is {'not ' if no else ''}null)", lambda row: (left[1](row) is None) is not no

    return st.one_of(
        st.builds(compare, term, st.sampled_from(sorted(COMPARISONS)), term),
        st.builds(same, term, term),
        st.builds(among, term, st.lists(term, min_size=1, max_size=3), st.booleans()),
        st.builds(between, term, term, term, st.booleans()),
        st.builds(missing, term, st.booleans()),
    )


def patterns() -> st.SearchStrategy[Term]:
    likes: dict[str, Callable[[str], bool]] = {
        "'a%'": lambda s: s.startswith("a"),
        "'%b'": lambda s: s.endswith("b"),
        "'%a%'": lambda s: "a" in s,
        "'_'": lambda s: len(s) == 1,
        "'_%'": lambda s: len(s) > 0,
        "'b!%' escape '!'": lambda s: s == "b%",
    }

    def build(left: Term, pattern: str, no: bool) -> Term:
        holds = strict(likes[pattern])
        text = f"({left[0]} {'not ' if no else ''}like {pattern})"
        return text, lambda row: negated(holds(left[1](row))) if no else holds(left[1](row))

    return st.builds(build, words(0), st.sampled_from(sorted(likes)), st.booleans())


def connectives(term: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    return st.one_of(
        st.builds(lambda a, b: (f"({a[0]} and {b[0]})", lambda row: both(a[1](row), b[1](row))), term, term),
        st.builds(lambda a, b: (f"({a[0]} or {b[0]})", lambda row: either(a[1](row), b[1](row))), term, term),
        st.builds(lambda a: (f"(not {a[0]})", lambda row: negated(a[1](row))), term),
        st.builds(lambda a: (f"({a[0]} is true)", lambda row: a[1](row) is True), term),
        st.builds(lambda a: (f"({a[0]} is not false)", lambda row: a[1](row) is not False), term),
        st.builds(lambda a: (f"({a[0]} is unknown)", lambda row: a[1](row) is None), term),
    )


def rows_of(seed: int) -> list[Row]:
    """Forty rows: a null in six, and else any of few values, so that equal ones meet."""
    random = Random(seed)
    return [{name: pick(random) for name, pick in PICKS.items()} for _ in range(40)]


EXPRESSIONS = st.lists(booleans(2), min_size=20, max_size=20)
SEEDS = st.integers(0, 2**32)


@given(EXPRESSIONS, SEEDS)
def test_a_compiled_expression_means_what_its_text_says(terms: list[Term], seed: int) -> None:
    rows = rows_of(seed)
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    for text, meaning in terms:
        for row, value in zip(rows, compile(text, SCHEMA, boolean=True)(batch).to_pylist(), strict=True):
            assert value is meaning(row), f"{text} of {row}"


@given(EXPRESSIONS, SEEDS, st.integers(0, 40))
def test_rows_give_the_same_in_any_company(terms: list[Term], seed: int, start: int) -> None:
    """Row-wise pure: any slice of a batch gives the slice of its values."""
    batch = pa.RecordBatch.from_pylist(rows_of(seed), SCHEMA)
    for text, _ in terms:
        compiled = compile(text, SCHEMA, boolean=True)
        assert compiled(batch.slice(start)).to_pylist() == compiled(batch).to_pylist()[start:], text

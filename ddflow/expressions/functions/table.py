"""Register SQL functions with their arguments, and suggest expressions for functions of other systems.

Guarantees: arguments are checked and converted before a builder gets them. A function of a null literal is null. Tests
compile each suggested expression over `COLUMNS`.
Limits: functions without an equivalent expression are not listed; docs/expressions.md lists the supported ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ddflow.expressions.casts import build_cast, cast_to_text
from ddflow.expressions.logic import read_regex_literal, read_text_literal
from ddflow.expressions.node import Compute, Node, Refusal, build_compute_node, null
from ddflow.expressions.types import DATE, DOUBLE, INSTANT, NULL, STRING, is_number, is_time, sql_name

COLUMNS: Final = pa.schema(
    {
        "text": pa.string(),
        "other": pa.string(),
        "document": pa.string(),
        "at": pa.timestamp("us"),
        "day": pa.date32(),
        "n": pa.int64(),
    }
)
"""Columns of the suggested expressions."""
_INSTEAD: Final = {
    "strftime to_char format_datetime date_to_char": "date_format(at, 'yyyy-MM-dd')",
    "strptime parse_timestamp": "to_timestamp(text)",
    "str_to_date parse_date": "to_date(text)",
    "try_to_timestamp": "try_cast(text as timestamp)",
    "try_to_date": "try_cast(text as date)",
    "date_part datepart": "extract(year from at)",
    "monthname": "date_format(at, 'MMMM')",
    "dayname": "date_format(at, 'EEEE')",
    "epoch unix_timestamp to_unix_timestamp unix_seconds": "cast(cast(at as timestamp) as bigint)",
    "from_unixtime timestamp_seconds": "cast(n as timestamp)",
    "add_months": "day + interval 1 month",
    "json_extract json_extract_string json_extract_scalar json_extract_path_text json_value json_tuple": (
        "get_json_object(document, '$.name')"
    ),
    "string_split str_split string_to_array": "split(text, ',')",
    "split_part substring_index": "element_at(split(text, ','), 1)",
    "regexp_matches regexp_full_match": "regexp_like(text, 'a.*')",
    "starts_with prefix": "startswith(text, 'a')",
    "ends_with suffix": "endswith(text, 'a')",
    "strlen": "length(text)",
    "mid": "substring(text, 1, 2)",
    "strcmp": "text < other",
    "to_number to_double": "cast(text as double)",
    "to_varchar to_string str": "cast(n as string)",
    "toint to_int to_integer": "cast(text as int)",
    "iff": "if(n > 0, text, other)",
    "decode": "case n when 1 then text else other end",
    "div": "n div 2",
}
_BY_NAME: Final = {name: made for names, made in _INSTEAD.items() for name in names.split()}


_FORMATTED: Final = (
    "it reads 2024-02-29; for 29.02.2024 give dates='%d.%m.%Y' where the file is read, or write "
    "{}(concat(substr(text, 7, 4), '-', substr(text, 4, 2), '-', substr(text, 1, 2)))"
)


def suggest_arguments(name: str) -> str:
    """Suggest how to call a function that takes more arguments in other systems.

    >>> suggest_arguments("upper")
    'give as many as it takes'
    """
    return _FORMATTED.format(name) if name in ("to_date", "to_timestamp") else "give as many as it takes"


def find_equivalent_expression(name: str) -> str | None:
    """Return an expression that replaces another system's function, or None. O(1). ``name``: in lower case.

    >>> find_equivalent_expression("strftime"), find_equivalent_expression("sin")
    ("date_format(at, 'yyyy-MM-dd')", None)
    >>> is_known_in_other_dialects("sin"), is_known_in_other_dialects("uper")
    (True, False)
    """
    return _BY_NAME.get(name)


def is_known_in_other_dialects(name: str) -> bool:
    """Return whether a dialect of SQL has a function of that name. O(1)."""
    from sqlglot import exp  # takes long to import

    return name.upper() in exp.FUNCTION_BY_NAME


Build: TypeAlias = Callable[..., Node]
Take: TypeAlias = Callable[[Node, str], Any]
"""Function that converts an argument for a builder, given the function's name.

It returns None if the argument makes the call null. Raises Refusal for an argument that does not fit.
"""


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """An SQL function. ``build`` gets the arguments as converted by ``takes``.

    ``least``: the least number of arguments. ``more``: whether any number may follow, converted like the last.
    ``of_null``: the type of a call that is null because a literal is null.
    """

    name: str
    build: Build
    takes: Sequence[Take]
    least: int
    more: bool
    of_null: pa.DataType

    def describe_arity(self) -> str:
        """Describe the number of its arguments, in words."""
        if self.more:
            return f"{self.least} or more arguments"
        if self.least != len(self.takes):
            return f"{self.least} to {len(self.takes)} arguments"
        return f"{self.least} argument{'' if self.least == 1 else 's'}"

    def call(self, arguments: list[Node]) -> Node:
        """Build the node of a call. Raises Refusal for a wrong number of arguments, or one that does not fit."""
        count = len(arguments)
        if count < self.least or (count > len(self.takes) and not self.more):
            raise Refusal(
                f"{self.name} takes {self.describe_arity()}, and this gives {count}", suggest_arguments(self.name)
            )
        takes = chain(self.takes, repeat(self.takes[-1]))
        given = [take(node, self.name) for take, node in zip(takes, arguments, strict=False)]
        return null(self.of_null) if any(each is None for each in given) else self.build(*given)


FUNCTIONS: Final[dict[str, SqlFunction]] = {}
"""All functions, by lower-case name. Each family registers its own when its file is loaded."""


def sql_function(
    *names: str,
    takes: Sequence[Take],
    least: int | None = None,
    more: bool = False,
    of_null: pa.DataType = STRING,
) -> Callable[[Build], Build]:
    """Register the decorated builder under all ``names``. The other parameters are described in `SqlFunction`."""

    def enter(build: Build) -> Build:
        for name in names:
            FUNCTIONS[name] = SqlFunction(name, build, takes, len(takes) if least is None else least, more, of_null)
        return build

    return enter


def register_row_function(compute: Compute, *names: str, takes: Sequence[Take], more: bool = False) -> None:
    """Register a function that is one computation over its converted arguments."""
    sql_function(*names, takes=takes, more=more)(partial(build_compute_node, compute))


def keep_argument(node: Node, _: str) -> Node:
    """Return the argument unchanged."""
    return node


def cast_argument_to_text(node: Node, _: str) -> Node:
    """Cast the argument to text."""
    return cast_to_text(node)


def cast_argument_to_number(node: Node, name: str) -> Node:
    """Return a number unchanged; cast text and null to double."""
    if node.type in (STRING, NULL):
        return build_cast(node, DOUBLE)
    if not is_number(node.type):
        raise Refusal(f"{name} takes a number, and this is {sql_name(node.type)}", "cast to a number first")
    return node


def cast_argument_to_double(node: Node, name: str) -> Node:
    """Cast any number to double."""
    return build_cast(cast_argument_to_number(node, name), DOUBLE)


def cast_argument_to_date(node: Node, name: str) -> Node:
    """Cast a timestamp or a text to a date."""
    return build_cast(_check_time(node, name, "date"), DATE)


def cast_argument_to_timestamp(node: Node, name: str) -> Node:
    """Cast a date or a text to a timestamp."""
    node = _check_time(node, name, "timestamp")
    return node if is_time(node.type) else build_cast(node, INSTANT)


def _check_time(node: Node, name: str, what: str) -> Node:
    if node.type not in (DATE, STRING, NULL) and not is_time(node.type):
        raise Refusal(f"{name} takes a {what}, and this is {sql_name(node.type)}", f"cast to {what} first")
    return node


def build_integer_reader(place: str) -> Take:
    """Build a reader for integer literals; ``place`` names the argument in errors."""
    return lambda node, _: read_integer_literal(node, place)


def build_text_reader(place: str) -> Take:
    """Build a reader for text literals."""
    return lambda node, _: read_text_literal(node, place)


def build_regex_reader(place: str) -> Take:
    """Build a reader for literals of regular expressions."""
    return lambda node, _: read_regex_literal(node, place)


def read_integer_literal(node: Node, place: str) -> int | None:
    """Return the value of an integer literal, None for a null. Raises Refusal if it varies by row or is no integer."""
    value = None if node.constant is None else node.constant.as_py()
    if node.constant is None or not (value is None or type(value) is int):
        raise Refusal(f"{place} is not an integer literal", "write it as a literal: it is the same for all rows")
    return value

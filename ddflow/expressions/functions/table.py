"""Register SQL functions with their arguments, and suggest expressions for functions of other systems.

Guarantees: arguments are checked and converted before the function's builder gets them. If a required literal is null,
the call gives null. Tests compile each suggested expression over the columns in `COLUMNS`.
Limits: functions of other systems without an equivalent expression are not listed. docs/expressions.md lists the
supported functions.
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
"""The columns that the suggested expressions read."""
CLOCK: Final = ("now", "current_timestamp", "current_date", "curdate")
"""The names of the clock, which is the time of the step."""
CLOCK_REMEDY: Final = (
    "compare it in WHERE, HAVING, filter(), or in ON with columns that an outer join can make null, by <, <=, >, >= or "
    "BETWEEN, as in at > now() - interval 1 hour"
)
"""What to write instead of the clock in another place."""
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
    "it parses 2024-02-29; for 29.02.2024 pass dates='%d.%m.%Y' where the file is read, or write "
    "{}(concat(substr(text, 7, 4), '-', substr(text, 4, 2), '-', substr(text, 1, 2)))"
)


def suggest_arguments(name: str) -> str:
    """Suggest a call of a function that takes fewer arguments in Spark than in other systems.

    >>> suggest_arguments("upper")
    'pass as many as it takes'
    """
    return _FORMATTED.format(name) if name in ("to_date", "to_timestamp") else "pass as many as it takes"


def find_equivalent_expression(name: str) -> str | None:
    """Return an expression that replaces a function of another system, or None. O(1). ``name``: in lower case.

    >>> find_equivalent_expression("strftime"), find_equivalent_expression("sin")
    ("date_format(at, 'yyyy-MM-dd')", None)
    >>> is_known_in_other_dialects("sin"), is_known_in_other_dialects("uper")
    (True, False)
    """
    return _BY_NAME.get(name)


def is_known_in_other_dialects(name: str) -> bool:
    """Return whether any dialect of SQL has a function of that name. O(1)."""
    from sqlglot import exp  # takes long to import

    return name.upper() in exp.FUNCTION_BY_NAME


Build: TypeAlias = Callable[..., Node]
Take: TypeAlias = Callable[[Node, str], Any]
"""A function that converts an argument for a builder. The second parameter is the name of the SQL function.

The function returns None if the argument makes the call null. An argument that does not fit raises Refusal.
"""


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """An SQL function. ``takes`` converts the arguments, and ``build`` makes a node from the converted arguments.

    ``least``: the least number of arguments. ``more``: whether more arguments may follow, converted like the last one.
    ``of_null``: the type of the call if it is null because a literal is null.
    """

    name: str
    build: Build
    takes: Sequence[Take]
    least: int
    more: bool
    of_null: pa.DataType

    def describe_arity(self) -> str:
        """Describe the number of arguments of the function, in words."""
        if self.more:
            return f"{self.least} or more arguments"
        if self.least != len(self.takes):
            return f"{self.least} to {len(self.takes)} arguments"
        return f"{self.least} argument{'' if self.least == 1 else 's'}"

    def call(self, arguments: list[Node]) -> Node:
        """Build the node of a call.

        Raises Refusal for a wrong number of arguments, or an argument that does not fit.
        """
        count = len(arguments)
        if count < self.least or (count > len(self.takes) and not self.more):
            raise Refusal(
                f"{self.name} takes {self.describe_arity()}, but this call has {count}", suggest_arguments(self.name)
            )
        takes = chain(self.takes, repeat(self.takes[-1]))
        given = [take(node, self.name) for take, node in zip(takes, arguments, strict=False)]
        return null(self.of_null) if any(each is None for each in given) else self.build(*given)


FUNCTIONS: Final[dict[str, SqlFunction]] = {}
"""All functions, by lower-case name. Each file of the folder registers its functions on import."""


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
    """Register an SQL function that applies ``compute`` to the converted arguments."""
    sql_function(*names, takes=takes, more=more)(partial(build_compute_node, compute))


def keep_argument(node: Node, _: str) -> Node:
    """Return the argument unchanged."""
    return node


def cast_argument_to_text(node: Node, _: str) -> Node:
    """Cast the argument to text."""
    return cast_to_text(node)


def cast_argument_to_number(node: Node, name: str) -> Node:
    """Return a number unchanged. Cast text and null to double."""
    if node.type in (STRING, NULL):
        return build_cast(node, DOUBLE)
    if not is_number(node.type):
        raise Refusal(f"{name} takes a number, but this is {sql_name(node.type)}", "cast to a number first")
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
        raise Refusal(f"{name} takes a {what}, but this is {sql_name(node.type)}", f"cast to {what} first")
    return node


def build_integer_reader(place: str) -> Take:
    """Build a reader for integer literals. Errors call the argument by the name ``place``."""
    return lambda node, _: read_integer_literal(node, place)


def build_text_reader(place: str) -> Take:
    """Build a reader for text literals."""
    return lambda node, _: read_text_literal(node, place)


def build_regex_reader(place: str) -> Take:
    """Build a reader for literals of regular expressions."""
    return lambda node, _: read_regex_literal(node, place)


def read_integer_literal(node: Node, place: str) -> int | None:
    """Return the value of an integer literal, or None for null.

    Raises Refusal for other types, and for values that differ between rows.
    """
    value = None if node.constant is None else node.constant.as_py()
    if node.constant is None or not (value is None or type(value) is int):
        raise Refusal(f"{place} is not an integer literal", "write it as a literal: it must be the same for all rows")
    return value

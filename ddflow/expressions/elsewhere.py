"""Functions of DuckDB, Postgres and Spark that are not here, and the expression that does the same here.

Invariant: every expression compiles over `COLUMNS`, which tests see to.  A name that is in no table here may be a
misspelt one, unless a dialect of SQL has such a function: then a name that is merely alike would mislead.

Limits: what has no counterpart is not listed; docs/expressions.md says what there is.

>>> instead("strftime"), instead("sin")
("date_format(at, 'yyyy-MM-dd')", None)
>>> is_known_elsewhere("sin"), is_known_elsewhere("uper")
(True, False)
"""

from typing import Final

import pyarrow as pa

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
"""What the expressions speak of."""
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


def fewer(name: str) -> str:
    """Say how to call a function that takes more arguments in other systems.

    >>> fewer("upper")
    'give as many as it takes'
    """
    return _FORMATTED.format(name) if name in ("to_date", "to_timestamp") else "give as many as it takes"


def instead(name: str) -> str | None:
    """Return an expression that replaces another system's function, or None.  ``name``: in lower case.  O(1)."""
    return _BY_NAME.get(name)


def is_known_elsewhere(name: str) -> bool:
    """Whether a dialect of SQL has a function of that name.  O(1)."""
    from sqlglot import exp  # which takes long to import

    return name.upper() in exp.FUNCTION_BY_NAME

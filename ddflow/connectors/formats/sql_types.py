"""Types of columns as databases name them in their messages, for columns that nobody declared.

Invariant: a type is taken only where every value of it fits; what is not known, or has no limits, is text.

>>> [str(of_sql(text)) for text in ("integer", "numeric(10,2)", "timestamp(3) with time zone", "bigint unsigned")]
['int32', 'decimal128(10, 2)', 'timestamp[us, tz=UTC]', 'uint64']
>>> [str(of_sql(text)) for text in ("character varying(20)", "numeric", "integer[]", "int(11)", "datetime(6)", "bytea")]
['string', 'string', 'string', 'int32', 'timestamp[us]', 'binary']
"""

import re
from typing import Final

import pyarrow as pa

_INTEGERS: Final = {
    **{"tinyint": 8, "smallint": 16, "smallserial": 16, "mediumint": 32, "int": 32, "integer": 32, "serial": 32},
    **{"bigint": 64, "bigserial": 64},
}
_OTHERS: Final = {
    **{"boolean": pa.bool_(), "bool": pa.bool_(), "real": pa.float32(), "float": pa.float64()},
    **{"double": pa.float64(), "double precision": pa.float64(), "date": pa.date32(), "bytea": pa.binary()},
    **{"time": pa.time64("us"), "time without time zone": pa.time64("us"), "datetime": pa.timestamp("us")},
    **{"timestamp": pa.timestamp("us"), "timestamp without time zone": pa.timestamp("us")},
    **{"timestamp with time zone": pa.timestamp("us", "UTC")},
}
_SIZE: Final = re.compile(r"\(([0-9, ]+)\)")
_DIGITS: Final = re.compile(r"(?:numeric|decimal)\((\d+),\s*(\d+)\)")


def of_sql(text: str) -> pa.DataType:
    """Return the type that holds the values of a column of Postgres or MySQL.  O(length)."""
    lower = text.strip().lower()
    if match := _DIGITS.fullmatch(lower):
        digits, scale = int(match[1]), int(match[2])
        return pa.decimal128(digits, scale) if scale <= digits <= 38 else pa.string()
    name = " ".join(_SIZE.sub(" ", lower).split())
    if name.removesuffix(" unsigned") in _INTEGERS:
        sign = "uint" if name.endswith(" unsigned") else "int"
        return pa.type_for_alias(f"{sign}{_INTEGERS[name.removesuffix(' unsigned')]}")
    return _OTHERS.get(name, pa.string())

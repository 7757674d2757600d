"""Provide one small array of every Arrow type, with difficult values, nulls and repetitions.

A state keeps the types in ``PLAIN`` unchanged, and converts the encodings in ``ENCODED`` to another type. If Arrow
cannot build an array of a type from Python values, the array is built from buffers or child arrays.

>>> PLAIN["int64"].null_count, PLAIN["int64"].type
(1, DataType(int64))
"""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

NAN = float("nan")
LONG = "ß" * 40


def extension(kind: pa.BaseExtensionType, values: list[Any]) -> pa.Array:
    """Build an array of an extension type from its storage values."""
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def decimals(kind: pa.DataType) -> pa.Array:
    """Build decimals with two digits after the point, including the largest values that fit."""
    most, least = (Decimal((sign, (9,) * kind.precision, -2)) for sign in (0, 1))
    return pa.array([Decimal("1.50"), None, Decimal("-2.00"), Decimal("0.00"), Decimal("1.50"), most, least], kind)


def runs(values: pa.Array) -> pa.Array:
    """Build a run-end encoded array of three values, whose runs have the lengths one, two and two."""
    return pa.RunEndEncodedArray.from_arrays(pa.array([1, 3, 5], pa.int32()), values)


FLAT: dict[str, pa.Array] = {
    "bool": pa.array([True, None, False, True]),
    **{
        f"{'u' * (low == 0)}int{bits}": pa.array([1, None, low, high, 0, 1], f"{'u' * (low == 0)}int{bits}")
        for bits in (8, 16, 32, 64)
        for low, high in ((0, 2**bits - 1), (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    },
    "float16": pa.array([np.float16(x) for x in (1.5, -0.0, 0.0, NAN, -2.0, float("inf"))], pa.float16()),
    "float32": pa.array([1.5, None, -0.0, 0.0, NAN, float("-inf"), -1.5], pa.float32()),
    "float64": pa.array([1.5, None, -0.0, 0.0, NAN, 1e308, -5e-324]),
    "date32": pa.array([0, None, -1, 20_000, 0], pa.int32()).view(pa.date32()),
    "date64": pa.array([0, None, -86_400_000, 86_400_000, 0]).view(pa.date64()),
    "time32": pa.array([0, None, 86_399, 5], pa.int32()).view(pa.time32("s")),
    "time64": pa.array([0, None, 86_399_999_999, 5]).view(pa.time64("us")),
    "timestamp": pa.array([0, None, -(10**15), 10**15, 0]).view(pa.timestamp("us")),
    "timestamp with zone": pa.array([0, None, -(10**12), 10**12]).view(pa.timestamp("ms", "UTC")),
    "duration": pa.array([0, None, -5, 10**12]).view(pa.duration("us")),
    "decimal32": decimals(pa.decimal32(9, 2)),
    "decimal64": decimals(pa.decimal64(18, 2)),
    "decimal128": decimals(pa.decimal128(38, 2)),
    "decimal256": decimals(pa.decimal256(76, 2)),
    "string": pa.array(["a", None, "", LONG, "a", "\0", "ab"]),
    "large_string": pa.array(["a", None, "", LONG, "b"], pa.large_string()),
    "binary": pa.array([b"a", None, b"", b"\xff\0", b"a"]),
    "large_binary": pa.array([b"a", None, b"", b"\0" * 70], pa.large_binary()),
    **{
        f"binary({n})": pa.array([b"a" * n, None, b"\0" * n, b"\xff" * n, b"a" * n], pa.binary(n))
        for n in (1, 3, 4, 8, 16)
    },
}
"""Types that may be keys and orders."""

NESTED: dict[str, pa.Array] = {
    "null": pa.nulls(4),
    "binary(0)": pa.array([b"", None, b""], pa.binary(0)),
    "interval": pa.array([(1, 2, 3), None, (0, 0, 0), (-1, 5, 6)], pa.month_day_nano_interval()),
    "list": pa.array([[1, 2], None, [], [None], [1], [2, 1]]),
    "list of text": pa.array([["a", "bc"], None, [], [None], [""], ["ab", "c"]]),
    "list of floats": pa.array([[0.0], None, [-0.0], [NAN], []], pa.large_list(pa.float64())),
    "list of bool": pa.array([[True], None, [False, None], []]),
    "list of null": pa.array([[None], None, [], [None, None]], pa.list_(pa.null())),
    "list of decimals": pa.array([[Decimal("1.5")], None, [None], []], pa.list_(pa.decimal128(5, 1))),
    "list of binary(3)": pa.array([[b"abc"], None, [None], [b"abc", b"xyz"]], pa.list_(pa.binary(3))),
    "list of lists": pa.array([[["a"], None], None, [], [[]], [[None]]]),
    "list of structs": pa.array([[{"x": 1}, None], None, [], [{"x": None}]]),
    "fixed list": pa.array([[1, 2], None, [None, 2], [2, 1]], pa.list_(pa.int32(), 2)),
    "fixed list of none": pa.array([[], None, []], pa.list_(pa.int32(), 0)),
    "list of fixed lists": pa.array([[[1, 2]], None, [None], []], pa.list_(pa.list_(pa.int8(), 2))),
    "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": None}, {"x": 1, "y": ""}]),
    "struct of none": pa.array([{}, None, {}], pa.struct([])),
    "struct of structs": pa.array([{"x": {"y": 1.5}}, None, {"x": None}, {"x": {"y": None}}]),
    "map": pa.array([[("a", 1)], None, [], [("b", None)], [("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
    "list of maps": pa.array([[[(1, 2)]], None, [None], []], pa.list_(pa.map_(pa.int8(), pa.int8()))),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0], pa.int8()), [pa.array([1, 2, None, 4, 1]), pa.array(["a", "b", "", None, "c"])]
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([1, 0, 1, 0], pa.int8()),
        pa.array([0, 0, 1, 1], pa.int32()),
        [pa.array([1, None]), pa.array(["a", "b"])],
    ),
    "uuid": extension(pa.uuid(), [uuid.UUID(int=i).bytes if i else None for i in (1, 0, 2, 1)]),
    "json": extension(pa.json_(), ["{}", None, "[1]", "{}"]),
    "bool8": extension(pa.bool8(), [1, None, 0]),
    "opaque": extension(pa.opaque(pa.list_(pa.int64()), "name", "vendor"), [[1], None, [2]]),
}
"""Types that only payload columns may have."""

PLAIN = FLAT | NESTED

TEXT, TEXTS, INTS = pa.string(), pa.list_(pa.string()), pa.list_(pa.int64())
VIEW, CODES = pa.string_view(), pa.dictionary(pa.int8(), pa.string())
HOLED = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), pa.array(["a", None]))
OF_LISTS = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array([[1], [2, None]]))
SHUFFLED = pa.ListViewArray.from_arrays(
    pa.array([2, 0, 0], pa.int32()), pa.array([1, 2, 3], pa.int32()), pa.array([1, 2, 3])
)
LISTED = pa.ListArray.from_arrays(pa.array([0, 2, None, 2, 5], pa.int32()), runs(pa.array(["a", None, "b"])))

ENCODED: dict[str, tuple[pa.Array, pa.DataType]] = {
    "dictionary": (pa.array(["a", None, "b", "a"]).dictionary_encode(), TEXT),
    "dictionary with a null in it": (HOLED, TEXT),
    "dictionary of lists": (OF_LISTS, INTS),
    "dictionary of views": (pa.DictionaryArray.from_arrays([0, None, 1, 0], pa.array(["a", LONG], VIEW)), TEXT),
    "run ends": (runs(pa.array(["a", None, "b"])), TEXT),
    "run ends of a dictionary": (runs(pa.array(["a", None, "a"]).dictionary_encode()), TEXT),
    "run ends of views": (runs(pa.array(["a", None, LONG], VIEW)), TEXT),
    "string_view": (pa.array(["a", None, "", LONG], VIEW), TEXT),
    "binary_view": (pa.array([b"a", None, b"", b"\0" * 20], pa.binary_view()), pa.binary()),
    "list_view": (pa.array([[1, 2], None, [], [None], [3]], pa.list_view(pa.int64())), INTS),
    "list_view out of order": (SHUFFLED, INTS),
    "large_list_view": (pa.array([["a"], None, [], [None]], pa.large_list_view(VIEW)), pa.large_list(TEXT)),
    "list of dictionaries": (pa.array([["a"], None, [], ["b", None]], pa.list_(CODES)), TEXTS),
    "list of run ends": (LISTED, TEXTS),
    "fixed list of views": (pa.array([["a", "b"], None, ["", None]], pa.list_(VIEW, 2)), pa.list_(TEXT, 2)),
    "struct of dictionaries": (
        pa.array([{"d": "a"}, None, {"d": None}], pa.struct({"d": CODES})),
        pa.struct({"d": TEXT}),
    ),
    "map to dictionaries": (
        pa.array([[("a", "x")], None, [], [("b", None)]], pa.map_(VIEW, CODES)),
        pa.map_(TEXT, TEXT),
    ),
}
"""The encodings of arrays. Each encoding has the type to which a state converts its values."""


def pieces(array: pa.Array) -> pa.ChunkedArray:
    """Return the same values in several chunks.

    Each chunk is a slice of a longer array at an odd offset, and some chunks are empty.
    """
    parts = []
    for begin in range(0, len(array), 3):
        end = min(begin + 3, len(array))
        longer = pa.concat_arrays([array, array]) if not pa.types.is_run_end_encoded(array.type) else array
        parts += [longer.slice(begin, end - begin), array.slice(0, 0)]
    return pa.chunked_array(parts, array.type)

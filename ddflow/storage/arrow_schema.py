"""The schema of an Arrow file, compared with the one that is expected before anything of the file is believed.

Invariant: `found_schema` gives the expected schema, or one of the same names whose types are narrower and keep hashes
when they are widened (``columns.widening``); any other is `Malformed`. It walks what is wanted, so however the metadata
of a file are knotted it ends, and Arrow never parses them.

>>> sink = pa.BufferOutputStream()
>>> with pa.ipc.new_file(sink, pa.schema({"n": pa.int32()})) as writer:
...     writer.write_table(pa.table({"n": pa.array([1], pa.int32())}))
>>> data = memoryview(sink.getvalue()).cast("B")
>>> found_schema(root(data[16:]), data, pa.schema({"n": pa.int64()})).field("n").type
DataType(int32)
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.wider import widening
from ddflow.storage.flatbuffer import FlatTable, Malformed, root

_LISTS: Final = {12, 16, 17, 21}
"""Types of a schema whose child may be called anything: list, fixed-size list, map, large list."""

_PARTS: Final = {
    1: "",
    2: "iB",
    3: "h",
    4: "",
    5: "",
    6: "",
    7: "ii",
    8: "h",
    9: "hi",
    10: "ht",
    11: "h",
    12: "",
    13: "",
    14: "hv",
    15: "i",
    16: "i",
    17: "",
    18: "h",
    19: "",
    20: "",
    21: "",
}
"""The fields of each type's table, by slot: numbers as ``struct`` writes them, "t" text, "v" a vector of int32."""

_INT, _FLOAT, _LIST, _STRUCT, _LARGE_LIST = 2, 3, 12, 13, 21
_INTEGERS: Final = {
    (8 << size, signed): pa.type_for_alias(f"{'' if signed else 'u'}int{8 << size}")
    for size in range(4)
    for signed in (True, False)
}
_FLOATS: Final = {0: pa.float16(), 1: pa.float32(), 2: pa.float64()}
_BYTES: Final = {4: pa.binary(), 5: pa.string(), 19: pa.large_binary(), 20: pa.large_string()}
"""Types that may be widened on reading, by the contents of their tables."""

_DEFAULTS: Final = {(7, 2): 128, (8, 0): 1, (9, 0): 1, (9, 1): 32, (18, 0): 1}
"""The value of an absent field if it is not 0, by type and slot."""


def found_schema(message: FlatTable, data: memoryview, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file, without metadata: the expected one, or one of narrower types with the same hashes.

    Raises `Malformed` for any other.
    """
    expected = memoryview(schema.serialize()).cast("B")
    # The bytes are the same where the same version of Arrow wrote them.
    if data[8 : 8 + len(expected)] == expected:
        return schema
    found, wanted = message.table(2), root(expected[8:]).table(2)
    assert wanted is not None
    if found is not None and found.number(0, "h") == wanted.number(0, "h"):
        if _alike(found, wanted, 1, True):
            return schema
        if found.count(1) == len(schema):
            pairs = list(zip(found.tables(1), wanted.tables(1), schema, strict=True))
            kinds = [kind for one, _, field in pairs if (kind := _narrower(one, field.type)) is not None]
            if len(kinds) == len(schema) and all(one.text(0) == other.text(0) for one, other, _ in pairs):
                return pa.schema([field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)])
    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
    raise Malformed(f"its columns are not those expected ({columns})")


def _narrower(found: FlatTable, wanted: pa.DataType) -> pa.DataType | None:
    """Return the type of a field if it is the wanted one or can be widened to it on reading; else None.

    It walks the wanted type, as `_alike` does.
    """
    number, type_ = found.number(2, "B"), found.table(3)
    if type_ is None or found.table(4) is not None or isinstance(wanted, pa.BaseExtensionType):
        kind = None
    elif number == _INT:
        width = type_.number(0, "i")
        kind = _INTEGERS.get((width, bool(type_.number(1, "B"))))
    elif number in (_LIST, _LARGE_LIST, _STRUCT):
        kind = _narrower_nested(found, number, wanted)
    else:
        kind = _FLOATS.get(type_.number(0, "h")) if number == _FLOAT else _BYTES.get(number)
    if kind is not None and (kind == wanted or widening(kind, wanted) == "read"):
        return kind
    expected = root(memoryview(pa.schema([("", wanted)]).serialize()).cast("B")[8:]).table(2)
    assert expected is not None
    (other,) = expected.tables(1)
    same = number == other.number(2, "B") and found.table(4) is None and _same_type(type_, other.table(3), number)
    return wanted if same and _alike(found, other, 5, number not in _LISTS) else None


def _narrower_nested(found: FlatTable, number: int, wanted: pa.DataType) -> pa.DataType | None:
    """Return the type of a list or a struct, as `_narrower` does, part by part."""
    kinds = {_LIST: pat.is_list, _LARGE_LIST: pat.is_large_list, _STRUCT: pat.is_struct}
    if not kinds[number](wanted) or found.count(5) != wanted.num_fields:
        return None
    fields = [wanted.field(i) for i in range(wanted.num_fields)]
    pairs = zip(found.tables(5), fields, strict=True)
    parts = [kind for one, field in pairs if (kind := _narrower(one, field.type)) is not None]
    if len(parts) < len(fields):
        return None
    made = [field.with_type(part) for field, part in zip(fields, parts, strict=True)]
    if number == _STRUCT:
        named = all(one.text(0).decode() == field.name for one, field in zip(found.tables(5), fields, strict=True))
        return pa.struct(made) if named else None
    return pa.large_list(made[0]) if number == _LARGE_LIST else pa.list_(made[0])


def _alike(found: FlatTable, wanted: FlatTable, slot: int, named: bool) -> bool:
    """Return whether two vectors of fields are the same.  It walks the wanted one, so a hostile file cannot make it
    loop."""
    if found.count(slot) != wanted.count(slot):
        return False
    for one, other in zip(found.tables(slot), wanted.tables(slot), strict=True):
        kind = other.number(2, "B")
        if one.number(2, "B") != kind or one.table(4) is not None or (named and one.text(0) != other.text(0)):
            return False
        if not _same_type(one.table(3), other.table(3), kind) or not _alike(one, other, 5, kind not in _LISTS):
            return False
    return True


def _same_type(found: FlatTable | None, wanted: FlatTable | None, kind: int) -> bool:
    """Return whether the tables of two types of one kind say the same."""
    if found is None or wanted is None:
        return found is wanted
    for slot, part in enumerate(_PARTS[kind] + ("i" if kind == 7 else "")):
        if part == "t":
            same = found.text(slot) == wanted.text(slot)
        elif part == "v":
            same = found.numbers(slot, np.int32) == wanted.numbers(slot, np.int32)
        else:
            default = _DEFAULTS.get((kind, slot), 0)
            same = found.number(slot, part, default) == wanted.number(slot, part, default)
        if not same:
            return False
    return True

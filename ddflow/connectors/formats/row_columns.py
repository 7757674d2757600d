"""The columns that the rows in messages have, whichever an input declares: so that a new one is noticed when it comes.

Invariant: every message is looked at, and a column is found in the first one that has it. Connect's schema says what
there is, of all messages that have an equal one at once; of others the keys are read, by the same parser as the rows,
in some 0.6 us a message of 570 bytes. A type comes from a schema, a catalog or a struct where there is one; else it is
guessed from all values that there are, as of JSON lines, and a column without a value has none yet.

>>> text = pa.array(['{"after": {"id": 1}}', '{"after": null}', '{"after": {"id": 2, "n": 1.5}}', "{"])
>>> columns_at(text, ("after",))
{'id': 0, 'n': 2}
>>> guessed(pa.array(['{"id": 1, "n": null}', '{"n": 1.5}', '{"on": null}']), ["n", "on"], "'t'")
{'n': DataType(double)}
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.files import open_files
from ddflow.connectors.formats.envelope import fields_at, schemas, wrapped
from ddflow.connectors.formats.parse import computed, parsed, quoted
from ddflow.errors import SchemaMismatch, UnreadableInput

Path = Sequence[str | int]
"""Where rows are: names of members, and places in lists."""


def columns_at(value: pa.Array, path: Path) -> dict[str, int]:
    """The columns of the rows at a path of messages, each with the first message that has it.  O(bytes)."""
    if pat.is_struct(value.type):
        return dict.fromkeys((field.name for field in struct_at(value.type, path)), 0) if len(value) else {}
    inner = wrapped(value)
    if not inner.any():
        return _keys(value, path, np.arange(len(value)))
    found, left = dict[str, int](), inner.copy()
    rows = np.flatnonzero(inner)
    for of, schema in schemas(value.take(pa.array(rows))):
        left[rows[of]] = False
        names = [str(field.get("field")) for field in fields_at(schema, [str(each) for each in path])]
        _first(found, names, int(rows[of].min()))
    for some, at in ((left, ("payload", *path)), (~inner, path)):
        if some.any():
            for name, row in _keys(value.filter(pa.array(some)), at, np.flatnonzero(some)).items():
                _first(found, [name], row)
    return found


def struct_at(kind: pa.DataType, path: Path) -> list[pa.Field]:
    """The fields below a path of structs, with Connect's schema beside it or without."""
    names = {field.name for field in kind} if pat.is_struct(kind) else set()
    for name in ("payload", *path) if {"schema", "payload"} <= names else path:
        if isinstance(name, int):
            kind = kind.value_type if pat.is_list(kind) else pa.null()
        elif pat.is_struct(kind) and kind.get_field_index(name) >= 0:
            kind = kind.field(name).type
        else:
            return []
    return list(kind) if pat.is_struct(kind) else []


def distinct(value: pa.Array, sql: str) -> list[tuple[str, int]]:
    """The texts that an expression over ``v`` makes of messages, each with the first message.  O(bytes)."""
    texts = parsed(value, sql)[0].dictionary_encode()
    codes = np.asarray(pc.fill_null(texts.indices, -1))
    known, first = np.unique(codes, return_index=True)
    told = texts.dictionary.to_pylist()
    return sorted(((told[code], int(row)) for code, row in zip(known, first, strict=True) if code >= 0), key=_row)


def _row(found: tuple[str, int]) -> int:
    return found[1]


def _keys(value: pa.Array, path: Path, rows: np.ndarray) -> dict[str, int]:
    found = dict[str, int]()
    for text, row in distinct(value, f"to_json(json_keys(v, {quoted(json_path(path))}))::varchar"):
        _first(found, json.loads(text), int(rows[row]))
    return found


def _first(found: dict[str, int], names: Iterable[str], row: int) -> None:
    for name in names:
        found[name] = min(row, found.get(name, row))


def json_path(path: Path) -> str:
    """A path as DuckDB takes it.

    >>> json_path(("data", 0))
    '$."data"[0]'
    """
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f'."{each}"' for each in path)


def guessed(rows: pa.Array, names: Iterable[str], what: str) -> dict[str, pa.DataType]:
    """The types of some columns of rows, JSON objects, that have values.  ``what``: how messages call the input.

    O(bytes).  Raises `SchemaMismatch` where no type fits all values.
    """
    out = dict[str, pa.DataType]()
    for name in names:
        pointer = "/" + name.replace("~", "~0").replace("/", "~1")
        cells = computed(rows, f"nullif(json_extract(v, {quoted(pointer)})::varchar, 'null')").drop_null()
        if not len(cells):
            continue
        try:
            lines = (f"{{{json.dumps(name)}: {cell}}}" for cell in cells.to_pylist())
            out[name] = schema_of(lines, {}).field(name).type
        except (SchemaMismatch, UnreadableInput) as error:
            remedy = f"take it in with engine.evolve({ {name: 'string'} }) before the run"
            raise SchemaMismatch(f"the new column {name!r} of {what}", error.found, remedy) from None
    return out


def schema_of(rows: Iterable[str], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns of rows, JSON objects, guessed as those of a file but for some ``types``.  As `open_files`."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(f"{row}\n" for row in rows)
        file.flush()
        return open_files([file.name], types).schema

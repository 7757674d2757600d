"""The columns that the rows in messages have, whichever an input declares: so that a new one is noticed when it comes.

Invariant: every message is looked at, and a column is found in the first one that has it. Connect's schema says what
there is, of all messages that have an equal one at once; of others the keys are read, by the same parser as the rows:
in one more pass, which takes half of what decoding takes. Only messages with a column that is not known are asked whose
they are. A type comes from a schema, a catalog or a struct where there is one; else it is guessed from all values that
there are, as of JSON lines, and a column without a value has none yet.

>>> text = pa.array(['{"after": {"id": 1}}', '{"after": null}', '{"after": {"id": 2, "n": 1.5}}', "{"])
>>> columns_at(text, ("after",))
{'id': 0, 'n': 2}
>>> guessed(pa.array(['{"id": 1, "n": null}', '{"n": 1.5}', '{"on": null}']), ["n", "on"], "'t'")
{'n': DataType(double)}
"""

import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.files import open_files
from ddflow.connectors.formats.envelope import fields_at, schemas, wrapped
from ddflow.connectors.formats.parse import Bools, exactly, parsed, quoted
from ddflow.errors import SchemaMismatch, UnreadableInput

Path = Sequence[str | int]
"""Where rows are: names of members, and places in lists."""
Ints = np.ndarray[Any, np.dtype[np.int64]]
Own = Callable[[Ints], Bools]
"""Which of some messages are of the table that is meant."""


def columns_at(value: pa.Array, path: Path, known: Collection[str] = (), own: Own | None = None) -> dict[str, int]:
    """Return the columns of the rows at a path of messages, without the known ones.  O(bytes).

    The value of each is the first message that has it.
    """
    if pat.is_struct(value.type):
        names = [field.name for field in struct_at(value.type, path) if field.name not in known]
        return dict.fromkeys(names, 0) if len(value) else {}
    inner = wrapped(value)
    if not inner.any():
        return _keys(value, path, np.arange(len(value)), known, own)
    found, left = dict[str, int](), inner.copy()
    rows = np.flatnonzero(inner)
    for of, schema in schemas(value.take(pa.array(rows))):
        left[rows[of]] = False
        names = [str(field.get("field")) for field in fields_at(schema, [str(each) for each in path])]
        names = [name for name in names if name not in known]
        if names and (mine := rows[of] if own is None else rows[of][own(rows[of])]).size:
            _first(found, names, int(mine.min()))
    for some, at in ((left, ("payload", *path)), (~inner, path)):
        if some.any():
            for name, row in _keys(value.filter(pa.array(some)), at, np.flatnonzero(some), known, own).items():
                _first(found, [name], row)
    return found


def struct_at(kind: pa.DataType, path: Path) -> list[pa.Field]:
    """Return the fields below a path of structs, with or without Connect's schema beside it."""
    names = {field.name for field in kind} if pat.is_struct(kind) else set()
    for name in ("payload", *path) if {"schema", "payload"} <= names else path:
        if isinstance(name, int):
            kind = kind.value_type if pat.is_list(kind) else pa.null()
        elif pat.is_struct(kind) and kind.get_field_index(name) >= 0:
            kind = kind.field(name).type
        else:
            return []
    return list(kind) if pat.is_struct(kind) else []


class Lists:
    """Lists of names, or of such lists, as JSON, of messages.  ``unknown``: by list its names that are not ``known``.

    ``rows``: the messages that have such names.  O(messages), and O(bytes) of lists that differ."""

    def __init__(self, texts: pa.Array, known: Collection[str]) -> None:
        told = texts.dictionary_encode()
        self.codes: Ints = np.asarray(pc.fill_null(told.indices, -1))
        self.unknown = [
            [name for name in _flat(json.loads(text)) if name not in known] for text in told.dictionary.to_pylist()
        ]
        self.rows: Ints = np.flatnonzero(np.array([*map(bool, self.unknown), False])[self.codes])

    def first(self, rows: Ints) -> dict[str, int]:
        """Return the unknown names in some messages, each with the first message that has it."""
        codes, at = np.unique(self.codes[rows], return_index=True)
        found = dict[str, int]()
        for row, code in sorted(zip(rows[at].tolist(), codes.tolist(), strict=True)):
            for name in self.unknown[code]:
                found.setdefault(name, row)
        return found


def _flat(names: Iterable[Any]) -> Iterator[str]:
    for each in names:
        yield from each if isinstance(each, list) else (each,)


def _keys(value: pa.Array, path: Path, rows: Ints, known: Collection[str], own: Own | None) -> dict[str, int]:
    keys, _ = parsed(value, f"to_json(json_keys(v, {quoted(json_path(path))}))::varchar")
    lists = Lists(keys, known)
    some = lists.rows if own is None or not lists.rows.size else lists.rows[own(rows[lists.rows])]
    return {name: int(rows[row]) for name, row in lists.first(some).items()}


def _first(found: dict[str, int], names: Iterable[str], row: int) -> None:
    for name in names:
        found[name] = min(row, found.get(name, row))


def json_path(path: Path) -> str:
    """Format a path for DuckDB.

    >>> json_path(("data", 0))
    '$."data"[0]'
    """
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f'."{each}"' for each in path)


def with_values(value: pa.Array, path: Path, names: Sequence[str]) -> pa.Array:
    """Return the messages that may show the type of one of some columns, by a value or a schema.  O(bytes).

    >>> with_values(pa.array(['{"id": 1, "n": null}', '{"n": 1.5}', "5"]), (), ["n"]).to_pylist()
    ['{"n": 1.5}']
    """
    if wrapped(value).any():
        return value
    pointers = ", ".join(quoted("".join(map(_escape_step, (*path, name)))) for name in names)
    there, _ = parsed(value, f"list_any_value(json_extract_string(v, [{pointers}])) is not null")
    return value.filter(there)


def _escape_step(step: str | int) -> str:
    """Escape a step of a JSON pointer."""
    return "/" + str(step).replace("~", "~0").replace("/", "~1")


def guessed(rows: pa.Array, names: Iterable[str], what: str) -> dict[str, pa.DataType]:
    """Guess the types of the named columns of JSON rows, if they have values.  O(bytes).

    ``what``: the input for messages.  Raises `SchemaMismatch` if no type fits all values.
    """
    out = dict[str, pa.DataType]()
    for name in names:
        cells = exactly(rows, f"nullif(json_extract(v, {quoted(_escape_step(name))})::varchar, 'null')").drop_null()
        if not len(cells):
            continue
        try:
            lines = (f"{{{json.dumps(name)}: {cell}}}" for cell in cells.to_pylist())
            out[name] = schema_of(lines, {}).field(name).type
        except (SchemaMismatch, UnreadableInput) as error:
            remedy = f"declare it in the flow, as text: {{{name!r}: str}}"
            raise SchemaMismatch(f"the new column {name!r} of {what}", error.found, remedy, column=name) from None
    return out


def schema_of(rows: Iterable[str], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Guess the columns of JSON rows as of a file, except some ``types``.  Raises as `open_files`."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(f"{row}\n" for row in rows)
        file.flush()
        return open_files([file.name], types).schema

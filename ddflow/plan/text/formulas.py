"""Write the formulas of a plan as JSON, and read fields of JSON with checks of their types.

Guarantees: in JSON, SQL is stored as text. Functions and pyarrow expressions are stored as a name and a digest, never
as code. If the value of a field has a wrong type, reading the field raises `CorruptState`.

>>> one, other = (lambda batch: batch.column("a")), (lambda batch: batch.column("b"))
>>> digest_code(one) == digest_code(other), digest_code(one) == digest_code(lambda rows: rows.column("a"))
(False, True)
"""

from __future__ import annotations

import builtins
import json
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, MethodType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ddflow.columns.wider import find_widening, list_changed_types
from ddflow.errors import CorruptState, SpecError, shorten
from ddflow.expressions import Expression
from ddflow.storage.fields import RESTORE_REMEDY

_SHORT = reprlib.Repr()  # the built-in repr fails for JSON nested very deeply, and is too long for messages
_SHORT.maxstring = _SHORT.maxother = 80


class JsonRecord:
    """A reader of the JSON object ``given``. ``what``: where the object is; error messages contain this text.

    >>> record = JsonRecord({"rows": 3, "of": {"name": "x"}}, "m")
    >>> record.read_record("of").read_text("name")
    'x'
    >>> record.read_text("rows")
    Traceback (most recent call last):
        ...
    ddflow.errors.CorruptState: m: rows is 3, not a text; it is damaged, or ddflow did not write it; ...
    """

    def __init__(self, given: Any, what: str) -> None:
        self.what = what
        if not isinstance(given, dict):
            raise self._make_corrupt_error("it", given, "an object")
        self.given: dict[str, Any] = given

    def __contains__(self, name: str) -> bool:
        return self.given.get(name) is not None

    def list_field_names(self) -> list[str]:
        """List the names of the fields."""
        return list(self.given)

    def read_text(self, name: str, most: int = 1 << 24) -> str:
        """Read a text of at most ``most`` characters."""
        value = self.given.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise self._make_corrupt_error(name, value, "a text")
        return value

    def read_integer(self, name: str) -> int:
        """Read an integer."""
        value = self.given.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._make_corrupt_error(name, value, "a whole number")
        return value

    def read_list(self, name: str) -> list[Any]:
        """Read a list of any values."""
        value = self.given.get(name)
        if not isinstance(value, list):
            raise self._make_corrupt_error(name, value, "a list")
        return value

    def read_texts(self, name: str) -> builtins.list[str]:
        """Read a list of texts."""
        values = self.read_list(name)
        if not all(isinstance(value, str) for value in values):
            raise self._make_corrupt_error(name, values, "a list of texts")
        return values

    def read_record(self, name: str) -> JsonRecord:
        """Read a nested record."""
        return JsonRecord(self.given.get(name), f"{self.what}, {name[:80]}")

    def read_records(self, name: str) -> builtins.list[JsonRecord]:
        """Read a list of records."""
        return [JsonRecord(each, f"{self.what}, {name}[{i}]") for i, each in enumerate(self.read_list(name))]

    def read_records_by_name(self, name: str) -> Mapping[str, JsonRecord]:
        """Read the records of a nested object, by name."""
        within = self.read_record(name)
        return {each: within.read_record(each) for each in within.list_field_names()}

    def _make_corrupt_error(self, name: str, value: Any, wanted: str) -> CorruptState:
        shown = _SHORT.repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:197]}..."
        return CorruptState(self.what, f"{name[:80]} is {shown}, not {wanted}", RESTORE_REMEDY)


def digest_json(given: Any) -> str:
    """Return the xxh3-128 hash of the canonical JSON text as 32 hex digits. Equal values have equal hashes.

    O(values).
    """
    return xxhash.xxh3_128_hexdigest(json.dumps(given, sort_keys=True, separators=(",", ":")).encode())


def write_formula(formula: JsonRecord) -> str:
    """Write a formula or the name of a column the way users write it.

    The formula comes from `Formulas.describe_formula`.
    """
    kind = next((each for each in ("column", "sql", "arrow", "python") if each in formula), "sql")
    return shorten(repr(formula.read_text(kind)) if kind in ("column", "sql") else formula.read_text(kind))


def find_formula_objections(
    expression: Expression, old: pa.Schema, new: pa.Schema, kind: pa.DataType | None = None
) -> Iterator[str]:
    """Yield reasons why the meaning of an expression can change over wider columns. O(text).

    ``old``, ``new``: the narrower and the wider columns, with all columns that the expression reads.  ``kind``: the
    former type of the expression, if a wider type with the same values is acceptable.
    """
    read = new.names if expression.columns is None else expression.columns
    changed = [name for name in list_changed_types(old, new) if name in read]
    if not changed:
        return
    if expression.text is not None:
        from ddflow.expressions.sql import find_wider_type  # imported here because its parser loads slowly

        found = find_wider_type(expression.text, old, new)
        if found is not None and (kind is None or expression.type == kind or find_widening(kind, expression.type)):
            return
    what = shorten(repr(expression.text)) if expression.text is not None else "a function or a pyarrow expression"
    yield f"{what} reads {changed}, and may mean something else with {[str(new.field(name).type) for name in changed]}"


class Formulas:
    """The formulas of one plan. ``digests``: for each kind and name, the digest and the version of Python or pyarrow.

    ``written``: whether another process will read the JSON. If ``written`` is true, two different formulas with the
    same name are an error. If ``written`` is false, ids in the JSON distinguish the two formulas.
    """

    def __init__(self, written: bool = True) -> None:
        self.written = written
        self.digests: dict[str, list[str]] = {}
        self._given: dict[str, Any] = {}

    def describe_formula(self, expression: Expression) -> dict[str, str]:
        """Describe the formula as JSON: its SQL, or its name and type. For SQL, the columns determine the type.

        O(text).  Raises `SpecError` if another formula has the same name.
        """
        if expression.text is not None:
            return {"sql": expression.text}
        kind = {"type": str(expression.type)}
        given = expression.given
        if isinstance(given, pc.Expression):
            found = [f"pyarrow {pa.__version__}", xxhash.xxh3_128_hexdigest(given.__reduce__()[1][0])]
            return {"arrow": self._register_name("arrow", str(given), found, found)} | kind
        name = find_code_name(given)
        same = (given.__func__, id(given.__self__)) if isinstance(given, MethodType) else id(given)
        found = [str(sys.implementation.cache_tag), digest_code(given)]
        return {"python": self._register_name("python", name, found, same)} | kind

    def describe_functions(self, given: Sequence[Any]) -> dict[str, str]:
        """Describe several functions that together are one formula, as JSON.

        O(code).  Raises `SpecError` if another formula has the same name.
        """
        given = [getattr(each, "py_func", each) for each in given]
        found = [str(sys.implementation.cache_tag), digest_json([digest_code(each) for each in given])]
        return {
            "python": self._register_name("python", " ".join(map(find_code_name, given)), found, tuple(map(id, given)))
        }

    def _register_name(self, kind: str, name: str, found: list[str], same: Any) -> str:
        if self._given.setdefault(f"{kind} {name}", same) != same:
            if not self.written:
                return f"{name} {same}"
            raise SpecError(
                "write a plan as JSON",
                f"two different formulas are both called {name}",
                "define functions of different names with def, or write SQL",
            )
        self.digests[f"{kind} {name}"] = found
        return name


def find_code_name(given: Any) -> str:
    """Return the module and the qualified name of a function or a callable object."""
    home = getattr(given, "__module__", None) or type(given).__module__
    return f"{home}.{getattr(given, '__qualname__', type(given).__qualname__)}"


def digest_code(function: Any) -> str:
    """Digest the code of a function, and the plain values in its defaults and its closure, to 32 hex digits.

    O(code).  All callable objects without ``__code__`` have the same digest.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return digest_json(None)
    cells = [_read_closure_cell(cell) for cell in getattr(function, "__closure__", None) or ()]
    return digest_json(
        [
            _describe_code(code),
            [_describe_constant(each) for each in (*(getattr(function, "__defaults__", None) or ()), *cells)],
        ]
    )


def _read_closure_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not bound yet
        return None


def _describe_code(code: CodeType) -> Any:
    return [code.co_code.hex(), list(code.co_names), [_describe_constant(each) for each in code.co_consts]]


def _describe_constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _describe_code(value)
    if isinstance(value, tuple):
        return [_describe_constant(each) for each in value]
    if isinstance(value, frozenset):  # the order of a set differs between processes
        return sorted(json.dumps(_describe_constant(each)) for each in value)
    return repr(value) if isinstance(value, int | float | complex | str | bytes | None) else type(value).__qualname__

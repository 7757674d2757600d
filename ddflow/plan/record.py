"""A record of a plan, whose fields are not known beforehand, such as the parameters of a node: read with suspicion.

Invariant: a value that comes out is of the type that was asked for; anything else is `CorruptState`
with the path to it. A record whose fields are known is a struct (``storage.fields``). It does not know what fields
mean.

>>> record = Record({"rows": 3, "of": {"name": "x"}}, "m")
>>> record.record("of").text("name")
'x'
>>> record.text("rows")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: m: rows is 3, not a text; it was not written by ddflow, or damaged; restore it ...
"""

from __future__ import annotations

import builtins
import reprlib
from collections.abc import Mapping
from typing import Any

from ddflow.errors import CorruptState
from ddflow.storage.fields import MEND

_SHORT = reprlib.Repr()  # what is nested as deep as JSON may be, or as long, has no repr of Python's own
_SHORT.maxstring = _SHORT.maxother = 80


class Record:
    """A reader of ``given``, an object of JSON.  ``what``: its place, for messages."""

    def __init__(self, given: Any, what: str) -> None:
        self.what = what
        if not isinstance(given, dict):
            raise self._wrong("it", given, "an object")
        self.given: dict[str, Any] = given

    def __contains__(self, name: str) -> bool:
        return self.given.get(name) is not None

    def names(self) -> list[str]:
        """List the names of its fields."""
        return list(self.given)

    def text(self, name: str, most: int = 1 << 24) -> str:
        """Read a text of at most ``most`` characters."""
        value = self.given.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise self._wrong(name, value, "a text")
        return value

    def whole(self, name: str) -> int:
        """Read a whole number."""
        value = self.given.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, value, "a whole number")
        return value

    def list(self, name: str) -> list[Any]:
        """Read a list of anything."""
        value = self.given.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def texts(self, name: str) -> builtins.list[str]:
        """Read a list of texts."""
        values = self.list(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, values, "a list of texts")
        return values

    def record(self, name: str) -> Record:
        """Read a nested record."""
        return Record(self.given.get(name), f"{self.what}, {name[:80]}")

    def records(self, name: str) -> builtins.list[Record]:
        """Read a list of records."""
        return [Record(each, f"{self.what}, {name}[{i}]") for i, each in enumerate(self.list(name))]

    def named(self, name: str) -> Mapping[str, Record]:
        """Read records by name."""
        within = self.record(name)
        return {each: within.record(each) for each in within.names()}

    def _wrong(self, name: str, value: Any, wanted: str) -> CorruptState:
        shown = _SHORT.repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:197]}..."
        return CorruptState(self.what, f"{name[:80]} is {shown}, not {wanted}", MEND)

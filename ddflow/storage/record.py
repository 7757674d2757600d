"""A record: a JSON object from a store, read with suspicion.

Invariant: a value that comes out is of the type and in the range that was asked for; anything else is `CorruptState`
with the path to it. Checksums tell of accidents, not of intent, and whatever a number says may be allocated, sliced or
mapped later; so nothing is taken from JSON but through here. It does not know what fields mean.

>>> blob = b'["00ff00ff00ff00ff-1.arrow", 4, "00000000000000000000000000000000"]'
>>> record = Record.parse(b'{"rows": 3, "blob": ' + blob + b"}", "m")
>>> record.number("rows"), record.blob("blob").length
(3, 4)
>>> record.number("rows", most=2)
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: m: rows is 3, not a whole number from 0 to 2; it was not written by ddflow, or damaged; ...
"""

from __future__ import annotations

import builtins
import json
import reprlib
from collections.abc import Mapping
from typing import Any

from ddflow.aside import aside
from ddflow.errors import CorruptState
from ddflow.storage.protocol import NAME, Blob

I64 = 2**63 - 1
_SHORT = reprlib.Repr()  # what is nested as deep as JSON may be, or as long, has no repr of Python's own
_SHORT.maxstring = _SHORT.maxother = 80


class Record:
    """``given``: an object of JSON.  ``what``: where it stands, for messages."""

    def __init__(self, given: Any, what: str) -> None:
        self.what = what
        if not isinstance(given, dict):
            raise self._wrong("it", given, "an object")
        self.given: dict[str, Any] = given

    @classmethod
    def parse(cls, data: bytes, what: str) -> Record:
        """The object that JSON text holds.  O(bytes)."""
        try:
            return cls(aside(lambda: json.loads(data)), what)
        except (ValueError, RecursionError) as error:
            raise CorruptState(what, f"it is no JSON ({error})", "restore it from a copy") from None

    def __contains__(self, name: str) -> bool:
        return self.given.get(name) is not None

    def names(self) -> list[str]:
        """The names of its fields."""
        return list(self.given)

    def number(self, name: str, least: int = 0, most: int = I64) -> int:
        """A whole number in [least, most]."""
        value = self.given.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def text(self, name: str, most: int = 1 << 24) -> str:
        """A text of at most so many characters."""
        value = self.given.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise self._wrong(name, value, "a text")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.given.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def list(self, name: str) -> list[Any]:
        """A list of anything."""
        value = self.given.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def texts(self, name: str) -> builtins.list[str]:
        """A list of texts."""
        values = self.list(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, values, "a list of texts")
        return values

    def record(self, name: str) -> Record:
        """A record within."""
        return Record(self.given.get(name), f"{self.what}, {name[:80]}")

    def records(self, name: str) -> builtins.list[Record]:
        """A list of records."""
        return [Record(each, f"{self.what}, {name}[{i}]") for i, each in enumerate(self.list(name))]

    def named(self, name: str) -> Mapping[str, Record]:
        """Records by name."""
        within = self.record(name)
        return {each: within.record(each) for each in within.names()}

    def blob(self, name: str) -> Blob:
        """A blob, as `Blob.to_json` wrote it."""
        return self._blob(name, self.given.get(name))

    def blobs(self, name: str) -> builtins.list[Blob]:
        """A list of them."""
        return [self._blob(f"{name}[{i}]", each) for i, each in enumerate(self.list(name))]

    def _blob(self, name: str, value: Any) -> Blob:
        if isinstance(value, list) and [type(each) for each in value] == [str, int, str]:
            called, length, digest = value
            if NAME.fullmatch(called) and 0 <= length <= I64 and len(digest) == 32:
                try:
                    return Blob(called, length, bytes.fromhex(digest))
                except ValueError:
                    pass
        raise self._wrong(name, value, "the name, length and checksum of a file")

    def _wrong(self, name: str, value: Any, wanted: str) -> CorruptState:
        shown = _SHORT.repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:197]}..."
        return CorruptState(
            self.what,
            f"{name[:80]} is {shown}, not {wanted}",
            "it was not written by ddflow, or damaged; restore it from a copy, or go back with ddflow rollback",
        )

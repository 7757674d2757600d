"""A record whose fields are not known beforehand, such as the parameters of a plan's node: read with suspicion.

Invariant: a value that comes out is of the type and in the range that was asked for; anything else is `CorruptState`
with the path to it. A record whose fields are known is a struct (``fields``); `Record.to` makes one of a part. It does
not know what fields mean.

>>> record = Record.parse(b'{"rows": 3, "of": {"name": "x"}}', "m")
>>> record.number("rows"), record.record("of").text("name")
(3, 'x')
>>> record.number("rows", most=2)
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: m: rows is 3, not a whole number from 0 to 2; it was not written by ddflow, or damaged; ...
"""

from __future__ import annotations

import builtins
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from msgspec.json import Decoder

from ddflow.errors import CorruptState
from ddflow.storage.fields import I64, MEND, converted, decoded
from ddflow.storage.protocol import Blob

T = TypeVar("T")
_SHORT = reprlib.Repr()  # what is nested as deep as JSON may be, or as long, has no repr of Python's own
_SHORT.maxstring = _SHORT.maxother = 80
_ANY: Final = Decoder(Any)


class Record:
    """``given``: an object of JSON.  ``what``: where it stands, for messages."""

    def __init__(self, given: Any, what: str) -> None:
        self.what = what
        if not isinstance(given, dict):
            raise self._wrong("it", given, "an object")
        self.given: dict[str, Any] = given

    @classmethod
    def parse(cls, data: Any, what: str) -> Record:
        """The object that JSON text holds.  O(bytes)."""
        return cls(decoded(_ANY, data, what), what)

    def __contains__(self, name: str) -> bool:
        return self.given.get(name) is not None

    def names(self) -> list[str]:
        """The names of its fields."""
        return list(self.given)

    def to(self, kind: type[T], name: str | None = None) -> T:
        """It, or the value of a field, as a struct or any other type that msgspec knows.  O(values)."""
        if name is None:
            return converted(self.given, kind, self.what)
        return converted(self.given.get(name), kind, f"{self.what}, {name[:80]}")

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

    def files(self) -> builtins.list[Blob]:
        """All files that it names, wherever in it they stand.  O(values).  Raises `CorruptState` for what is none."""
        return converted([file for _, _, file in self._files()], builtins.list[Blob], f"{self.what}, its files")

    def rename(self, files: Mapping[str, Blob]) -> None:
        """Name other files in the place of those that it names.  O(values)."""
        for holder, at, file in builtins.list(self._files()):
            holder[at] = files[file[0]]

    def _files(self) -> Iterator[tuple[Any, Any, Any]]:
        """Each value that names a file: what holds it, at which name or number, and the value."""
        ahead: builtins.list[Any] = [self.given]
        while ahead:
            holder = ahead.pop()
            for at, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
                if isinstance(value, builtins.list) and [type(each) for each in value] == [str, int, str]:
                    yield holder, at, value
                elif isinstance(value, dict | builtins.list):
                    ahead.append(value)

    def _wrong(self, name: str, value: Any, wanted: str) -> CorruptState:
        shown = _SHORT.repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:197]}..."
        return CorruptState(self.what, f"{name[:80]} is {shown}, not {wanted}", MEND)

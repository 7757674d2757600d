"""The brackets of JSON text: how deep they stand within each other, and an array of objects made lines of them.

Invariant: `ArrayElements` changes no byte within an element but the ends of lines there, which JSON takes for spaces;
what is between elements becomes the end of a line. So what follows reads lines alone, and an array of any size passes
in pieces. Brackets within quotes do not count, nor does a quote behind a backslash. Whether an element is JSON is for
a parser; that the array is opened and closed once is looked at here.

>>> elements = ArrayElements("a.json")
>>> elements.lines(b'[{"id": 1,\\n "t": "],["}, {"i') + elements.lines(b'd": 2}]\\n') + elements.end()
b' {"id": 1,  "t": "],["}\\n {"id": 2}  \\n'
"""

from typing import Any, Final

import numpy as np

from ddflow.errors import UnreadableInput

DEPTH: Final = 40
"""Brackets within brackets, the row's own among them.  Arrow files hold 64 levels, Parquet 100, two for a list."""
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def depths(text: bytes, depth: int = 0, quoted: bool = False) -> tuple[Any, Any]:
    """Return, for each byte of a text, its depth in brackets (int32), and whether it is quoted.  O(n).

    ``depth``, ``quoted``: where the text begins.  It must not begin behind a backslash.

    >>> depths(b'[{"a]": []}]')[0].tolist()
    [1, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 0]
    """
    plain = np.frombuffer(text.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
    quotes = plain == ord('"')
    inside = (np.cumsum(quotes, dtype=np.int32) + quoted) % 2 == 1
    return depth + np.cumsum(np.where(inside, 0, _STEPS[plain]), dtype=np.int32), inside


class ArrayElements:
    """The elements of one array, as lines.  ``where``: what the file is called."""

    def __init__(self, where: str) -> None:
        self._where, self._depth, self._quoted, self._rest, self._ended = where, 0, False, b"", False

    def lines(self, text: bytes) -> bytes:
        """Convert the next piece of the file to lines.  O(n).  Raises `UnreadableInput` if it is not an array."""
        text = self._rest + text
        kept = len(text) - len(text.rstrip(b"\\"))  # half an escape waits for the other half
        text, self._rest = text[: len(text) - kept], text[len(text) - kept :]
        if not text:
            return b""
        depth, inside = depths(text, self._depth, self._quoted)
        before = np.concatenate(([self._depth], depth[:-1]))
        out = np.frombuffer(text, np.uint8).copy()
        out[(out == 10) | (out == 13)] = 32
        outside = (before == 0) & (out > 32)
        opened = outside & (out == ord("["))
        if outside.sum() > opened.sum() or opened.sum() + self._ended > 1 or depth.min() < 0:
            raise UnreadableInput(
                self._where, "it is not one array of objects", "is it a whole JSON file: [{...}, {...}]?"
            )
        self._ended |= bool(opened.any())
        out[(depth == 1) & ~inside & (out == ord(","))] = 10
        out[opened | ((depth == 0) & (before == 1))] = 32
        self._depth, self._quoted = int(depth[-1]), bool(inside[-1])
        return out.tobytes()

    def end(self) -> bytes:
        """End the last line.  Raises `UnreadableInput` if the array is not closed."""
        if self._depth or self._rest or not self._ended:
            raise UnreadableInput(self._where, "its array is not closed", "is it a whole JSON file?")
        return b"\n"

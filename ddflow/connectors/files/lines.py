"""Lines of JSON on their way to a parser: none too long, none nested too deep.

Invariant: a parser sees nothing of a line that is longer than a block, nor a bracket deeper than ``DEPTH``: Arrow's
parser calls itself for each bracket, so 20,000 of them in 40 kB overflow the stack and end the process; and a line is
held whole in memory, also one of 2 GB in a gzip of 2 MB.

>>> bounds = Bounds(Path("a.jsonl"))
>>> _ = bounds(pa.py_buffer(b'{"id": 1, "text": "' + b"[" * 100 + b'"}\\n'))
>>> bounds(pa.py_buffer(b'{"id": 2, "deep": ' + b"[" * 100))
Traceback (most recent call last):
    ...
ddflow.errors.UnreadableInput: a.jsonl, line 2: brackets are nested more than 40 deep; mend the line, or leave it out
"""

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from ddflow.connectors.files.guess import SAMPLE
from ddflow.errors import UnreadableInput
from ddflow.kernels.brackets import beyond

DEPTH: Final = 40
"""Brackets within brackets, the row's own among them.  Arrow files hold 64 levels, Parquet 100, two for a list."""


class Bounds:
    """Looks at the bytes of a file, chunk by chunk.  ``line``: how many lines came before."""

    def __init__(self, path: Path, line: int = 0) -> None:
        self._path, self._state = path, np.array([0, 0, 0, line])

    def __call__(self, chunk: pa.Buffer) -> pa.Buffer:
        """The chunk.  O(bytes).  Raises `UnreadableInput`, naming the line."""
        if beyond(np.frombuffer(memoryview(chunk), np.uint8).copy(), DEPTH, SAMPLE, self._state) >= 0:
            deep = self._state[0] > DEPTH
            found = f"brackets are nested more than {DEPTH} deep" if deep else f"it is longer than {SAMPLE:,} bytes"
            where = f"{self._path}, line {self._state[3] + 1:,}"
            raise UnreadableInput(where, found, "mend the line, or leave it out")
        return chunk

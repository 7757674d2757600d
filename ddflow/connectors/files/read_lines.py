"""Files of which each line is a message: text that a format reads.

Invariant: a line is given as the bytes that stand there, without its end; one that is blank is none, and is counted.

>>> [(first, lines.to_pylist()) for first, lines in blocks(pa.BufferReader(b'{"id": 1}\\n\\n{"id": 2}'))]
[(0, [b'{"id": 1}', b'']), (2, [b'{"id": 2}'])]
"""

import io
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.files.guess import SAMPLE
from ddflow.connectors.files.places import MAGIC
from ddflow.connectors.files.reading import File, reading

VALUE: Final = "value"
LINE: Final = "line"
"""As `ddflow.connectors.formats.messages` has them."""
Ints = np.ndarray[Any, np.dtype[np.int64]]
BLOCK: Final = 1 << 22


class LinesFile(File):
    """A file of messages, a line each."""

    def columns(self) -> Mapping[str, pa.DataType]:
        """Return the message, and its line."""
        return {VALUE: pa.binary(), LINE: pa.int64()}

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield its lines."""
        with reading(self.place):
            for number, lines in blocks(self._stream(self.place.open())):
                values, places = filled(lines)
                yield pa.record_batch({VALUE: values, LINE: pa.array(places + (number + 1))})

    def first(self) -> pa.Array:
        """Return the first lines; without the last one if it may be cut."""
        with reading(self.place), self._stream(self.place.head()) as stream:
            text = stream.read(SAMPLE)
            whole = text[: text.rfind(b"\n") + 1] or text
        return filled(next(blocks(pa.BufferReader(whole)), (0, pa.array([], pa.binary())))[1])[0]

    def _stream(self, stream: pa.NativeFile) -> pa.NativeFile:
        """Decompress a stream if its first bytes are compressed."""
        with self.place.head() as head:
            begin = head.read(4)
        wrapped = next((how for magic, how in MAGIC.items() if begin.startswith(magic)), None)
        return stream if wrapped is None else pa.CompressedInputStream(stream, wrapped)


def blocks(stream: pa.NativeFile) -> Iterator[tuple[int, pa.Array]]:
    """Yield blocks of a stream's lines, each with the number of its first line.  O(bytes)."""
    rest, number = io.BytesIO(), 0
    while True:
        block = stream.read(BLOCK)
        end = block.rfind(b"\n") + 1
        rest.write(block[:end])
        if end or not block:
            text = rest.getvalue()
            rest = io.BytesIO()
            if text:
                whole = pa.array([text.removesuffix(b"\n")], pa.binary())
                lines = pc.split_pattern(whole, b"\n").values  # type: ignore[attr-defined]
                yield number, lines
                number += len(lines)
        rest.write(block[end:])
        if not block:
            return


def filled(lines: pa.Array) -> tuple[pa.Array, Ints]:
    """Return the lines that are not blank, and their places among all.  O(bytes)."""
    there = np.flatnonzero(np.asarray(pc.match_substring_regex(lines, r"\S")))
    return lines.take(pa.array(there)), there

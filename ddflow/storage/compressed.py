"""Compressed files: Arrow files whose buffers are LZ4, one by one, for what is written often and seldom read.

Invariant: `decompressed` gives exactly the bytes that were compressed, or raises `Malformed`; it never takes more than
``MOST`` times the bytes that it is given. A buffer says itself how much it holds, and whoever wrote it may be
hostile. LZ4 cannot hold more than 255 bytes in one, so a greater claim is a lie that is told before there is room for
it; a buffer that holds less than it says would end in whatever lay in memory, so a claim that is too great by one byte
is found out as well. Other codecs have no such bound, and are not read.

>>> sink, batch = pa.BufferOutputStream(), pa.record_batch({"n": [7] * 1000})
>>> with pa.ipc.new_file(sink, batch.schema, options=OPTIONS) as writer:
...     writer.write_batch(batch)
>>> sink.getvalue().size < 1000
True
>>> body = pa.Codec("lz4").compress(bytes(1000))
>>> decompressed(pa.py_buffer((1000).to_bytes(8, "little") + body.to_pybytes())).size
1000
>>> decompressed(pa.py_buffer((1001).to_bytes(8, "little") + body.to_pybytes()))
Traceback (most recent call last):
    ...
ddflow.storage.flatbuffer.Malformed: a buffer says that it holds 1,001 bytes, and holds fewer
"""

from typing import Final

import pyarrow as pa

from ddflow.storage.flatbuffer import FlatTable, Malformed

MOST: Final = 255
"""Bytes that one byte of LZ4 may stand for at most."""
OPTIONS: Final = pa.ipc.IpcWriteOptions(
    metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False, compression="lz4"
)
_CODEC: Final = pa.Codec("lz4")
_PLAIN: Final = -1
"""The claim of a buffer that compression would not make smaller."""


def known(compression: FlatTable) -> None:
    """Raise `Malformed` for the header of a batch that is compressed in another way.  O(1)."""
    if compression.number(0, "b") or compression.number(1, "b"):
        raise Malformed("a batch is compressed, and not by LZ4, buffer by buffer")


def decompressed(buffer: pa.Buffer) -> pa.Buffer:
    """Decompress a buffer.  O(bytes).  Raises `Malformed`."""
    if buffer.size == 0:
        return buffer
    if buffer.size < 8:
        raise Malformed(f"a buffer of {buffer.size} bytes does not say what it holds")
    claim, body = int.from_bytes(memoryview(buffer)[:8], "little", signed=True), buffer.slice(8)
    if claim == _PLAIN:
        return body
    if not 0 < claim <= MOST * body.size:
        raise Malformed(f"a buffer of {buffer.size:,} bytes says that it holds {claim:,}")
    try:
        out = _CODEC.decompress(body, decompressed_size=claim)
    except OSError as error:
        raise Malformed(f"a buffer that holds {claim:,} bytes is not LZ4: {error}") from None
    if not _overflows(body, claim - 1):
        raise Malformed(f"a buffer says that it holds {claim:,} bytes, and holds fewer")
    return out


def _overflows(body: pa.Buffer, room: int) -> bool:
    """Return whether a buffer holds more bytes than ``room``."""
    try:
        _CODEC.decompress(body, decompressed_size=room)
    except OSError:
        return True
    return False

"""Read the Arrow files of a state as record batches. The code assumes that an attacker may have written any file.
>>> sink, batch = pa.BufferOutputStream(), pa.record_batch({"n": [1, 2]})
>>> with open_file_writer(sink, batch.schema) as writer:
...     writer.write_batch(batch)
>>> [read.to_pydict() for read in read_batches(sink.getvalue(), batch.schema, 2, "the file x")]
[{'n': [1, 2]}]
>>> [read.schema.field("n").type for read in read_batches(sink.getvalue(), pa.schema({"n": pa.int64()}), 2, "x")]
[DataType(int64)]
>>> read_batches(sink.getvalue(), pa.schema({"n": pa.int32()}), 2, "the file x")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: the file x: its columns differ from the expected ones (n: int32); it is damaged, or ...
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.widening import conform_to_wider_schema
from ddflow.columns.wider import find_widening
from ddflow.errors import CommandFix, CorruptState, ErrorText
from ddflow.storage.files.flatbuffer import FlatTable, MalformedMetadata, read_root_table

_LISTS: Final = {12, 16, 17, 21}
"""The type numbers of list, fixed-size list, map and large list.

The child field of a list or map may have any name.
"""

_PARTS: Final = {
    1: "",
    2: "iB",
    3: "h",
    4: "",
    5: "",
    6: "",
    7: "ii",
    8: "h",
    9: "hi",
    10: "ht",
    11: "h",
    12: "",
    13: "",
    14: "hv",
    15: "i",
    16: "i",
    17: "",
    18: "h",
    19: "",
    20: "",
    21: "",
}
"""The parameters of each Arrow type, by type number.

There is one letter for each slot of the flatbuffer table: a format letter of the module ``struct``, "t" for a text, or
"v" for a vector of int32.
"""

_INT, _FLOAT, _LIST, _STRUCT, _LARGE_LIST = 2, 3, 12, 13, 21
_INTEGERS: Final = {
    (8 << size, signed): pa.type_for_alias(f"{'' if signed else 'u'}int{8 << size}")
    for size in range(4)
    for signed in (True, False)
}
_FLOATS: Final = {0: pa.float16(), 1: pa.float32(), 2: pa.float64()}
_BYTES: Final = {4: pa.binary(), 5: pa.string(), 19: pa.large_binary(), 20: pa.large_string()}
"""The text and binary types, by type number.

Text and binary types, and the types in `_INTEGERS` and `_FLOATS`, may be widened when a file is read.
"""

_DEFAULTS: Final = {(7, 2): 128, (8, 0): 1, (9, 0): 1, (9, 1): 32, (18, 0): 1}
"""The default values of type parameters, by type number and slot. All other defaults are 0."""


def match_schema(message: FlatTable, data: memoryview, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file, without metadata: the expected schema, or a narrower schema with equal hashes.

    Raises `MalformedMetadata` for any other schema.

    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_file(sink, pa.schema({"n": pa.int32()})) as writer:
    ...     writer.write_table(pa.table({"n": pa.array([1], pa.int32())}))
    >>> data = memoryview(sink.getvalue()).cast("B")
    >>> match_schema(read_root_table(data[16:]), data, pa.schema({"n": pa.int64()})).field("n").type
    DataType(int32)
    """
    expected = memoryview(schema.serialize()).cast("B")
    # A fast path for equal bytes: one version of Arrow always serializes equal schemas to equal bytes.
    if data[8 : 8 + len(expected)] == expected:
        return schema
    found, wanted = message.read_table(2), read_root_table(expected[8:]).read_table(2)
    assert wanted is not None
    if found is not None and found.read_number(0, "h") == wanted.read_number(0, "h"):
        if _has_same_fields(found, wanted, 1, True):
            return schema
        if found.count_tables(1) == len(schema):
            pairs = list(zip(found.read_tables(1), wanted.read_tables(1), schema, strict=True))
            kinds = [kind for one, _, field in pairs if (kind := _match_type(one, field.type)) is not None]
            if len(kinds) == len(schema) and all(one.read_text(0) == other.read_text(0) for one, other, _ in pairs):
                return pa.schema([field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)])
    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
    raise MalformedMetadata(f"its columns differ from the expected ones ({columns})")


def _match_type(found: FlatTable, wanted: pa.DataType) -> pa.DataType | None:
    """Return the type of a field if it is the wanted type, or if reading the file can widen it to the wanted type.

    Otherwise return None. Like `_has_same_fields`, the function loops over the wanted type, not over the file.
    """
    number, type_ = found.read_number(2, "B"), found.read_table(3)
    if type_ is None or found.read_table(4) is not None or isinstance(wanted, pa.BaseExtensionType):
        kind = None
    elif number == _INT:
        width = type_.read_number(0, "i")
        kind = _INTEGERS.get((width, bool(type_.read_number(1, "B"))))
    elif number in (_LIST, _LARGE_LIST, _STRUCT):
        kind = _match_nested_type(found, number, wanted)
    else:
        kind = _FLOATS.get(type_.read_number(0, "h")) if number == _FLOAT else _BYTES.get(number)
    if kind is not None and (kind == wanted or find_widening(kind, wanted) == "read"):
        return kind
    expected = read_root_table(memoryview(pa.schema([("", wanted)]).serialize()).cast("B")[8:]).read_table(2)
    assert expected is not None
    (other,) = expected.read_tables(1)
    same = (
        number == other.read_number(2, "B")
        and found.read_table(4) is None
        and _is_same_type(type_, other.read_table(3), number)
    )
    return wanted if same and _has_same_fields(found, other, 5, number not in _LISTS) else None


def _match_nested_type(found: FlatTable, number: int, wanted: pa.DataType) -> pa.DataType | None:
    """Do the same as `_match_type` for a list or a struct, part by part."""
    kinds = {_LIST: pat.is_list, _LARGE_LIST: pat.is_large_list, _STRUCT: pat.is_struct}
    if not kinds[number](wanted) or found.count_tables(5) != wanted.num_fields:
        return None
    fields = [wanted.field(i) for i in range(wanted.num_fields)]
    pairs = zip(found.read_tables(5), fields, strict=True)
    parts = [kind for one, field in pairs if (kind := _match_type(one, field.type)) is not None]
    if len(parts) < len(fields):
        return None
    made = [field.with_type(part) for field, part in zip(fields, parts, strict=True)]
    if number == _STRUCT:
        named = all(
            one.read_text(0).decode() == field.name for one, field in zip(found.read_tables(5), fields, strict=True)
        )
        return pa.struct(made) if named else None
    return pa.large_list(made[0]) if number == _LARGE_LIST else pa.list_(made[0])


def _has_same_fields(found: FlatTable, wanted: FlatTable, slot: int, named: bool) -> bool:
    """Return whether two flatbuffer vectors have the same fields.

    The function loops over the wanted fields, not over the file, so a malicious file cannot cause an endless loop.
    """
    if found.count_tables(slot) != wanted.count_tables(slot):
        return False
    for one, other in zip(found.read_tables(slot), wanted.read_tables(slot), strict=True):
        kind = other.read_number(2, "B")
        if (
            one.read_number(2, "B") != kind
            or one.read_table(4) is not None
            or (named and one.read_text(0) != other.read_text(0))
        ):
            return False
        if not _is_same_type(one.read_table(3), other.read_table(3), kind) or not _has_same_fields(
            one, other, 5, kind not in _LISTS
        ):
            return False
    return True


def _is_same_type(found: FlatTable | None, wanted: FlatTable | None, kind: int) -> bool:
    """Return whether two types have the same parameters.

    The two types are flatbuffer tables with the same type number ``kind``.
    """
    if found is None or wanted is None:
        return found is wanted
    for slot, part in enumerate(_PARTS[kind] + ("i" if kind == 7 else "")):
        if part == "t":
            same = found.read_text(slot) == wanted.read_text(slot)
        elif part == "v":
            same = found.read_numbers(slot, np.int32) == wanted.read_numbers(slot, np.int32)
        else:
            default = _DEFAULTS.get((kind, slot), 0)
            same = found.read_number(slot, part, default) == wanted.read_number(slot, part, default)
        if not same:
            return False
    return True


MOST: Final = 255
"""The maximum number of bytes that one byte compressed by LZ4 can decompress to."""
OPTIONS: Final = pa.ipc.IpcWriteOptions(
    metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False, compression="lz4"
)
_CODEC: Final = pa.Codec("lz4")
_PLAIN: Final = -1
"""The size that Arrow declares for a buffer that is stored uncompressed, because compression would not shrink it."""


def check_compression(compression: FlatTable) -> None:
    """Check that each buffer of a batch is compressed separately, by LZ4. Raises `MalformedMetadata`. O(1)."""
    if compression.read_number(0, "b") or compression.read_number(1, "b"):
        raise MalformedMetadata("a batch is compressed, but not by LZ4, buffer by buffer")


def decompress_buffer(buffer: pa.Buffer) -> pa.Buffer:
    """Decompress a buffer. O(bytes). Raises `MalformedMetadata`.

    >>> sink, batch = pa.BufferOutputStream(), pa.record_batch({"n": [7] * 1000})
    >>> with pa.ipc.new_file(sink, batch.schema, options=OPTIONS) as writer:
    ...     writer.write_batch(batch)
    >>> sink.getvalue().size < 1000
    True
    >>> body = pa.Codec("lz4").compress(bytes(1000))
    >>> decompress_buffer(pa.py_buffer((1000).to_bytes(8, "little") + body.to_pybytes())).size
    1000
    >>> decompress_buffer(pa.py_buffer((1001).to_bytes(8, "little") + body.to_pybytes()))
    Traceback (most recent call last):
        ...
    ddflow.storage.files.flatbuffer.MalformedMetadata: a buffer says that it holds 1,001 bytes, but holds fewer
    """
    if buffer.size == 0:
        return buffer
    if buffer.size < 8:
        raise MalformedMetadata(f"a buffer of {buffer.size} bytes is too short to declare its size")
    claim, body = int.from_bytes(memoryview(buffer)[:8], "little", signed=True), buffer.slice(8)
    if claim == _PLAIN:
        return body
    if not 0 < claim <= MOST * body.size:
        raise MalformedMetadata(f"a buffer of {buffer.size:,} bytes says that it holds {claim:,}")
    try:
        out = _CODEC.decompress(body, decompressed_size=claim)
    except OSError as error:
        raise MalformedMetadata(f"a buffer that holds {claim:,} bytes is not LZ4: {error}") from None
    if not _has_more_bytes_than(body, claim - 1):
        raise MalformedMetadata(f"a buffer says that it holds {claim:,} bytes, but holds fewer")
    return out


def _has_more_bytes_than(body: pa.Buffer, room: int) -> bool:
    """Return whether a compressed buffer decompresses to more than ``room`` bytes."""
    try:
        _CODEC.decompress(body, decompressed_size=room)
    except OSError:
        return True
    return False


PLAIN: Final = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False)
MAGIC: Final = b"ARROW1"
RATIO: Final = 1024
"""The maximum number of rows per byte of a file. A limit is necessary because columns of some types take no bytes."""

_MORE: Final = b"\xff\xff\xff\xff"
_V5, _SCHEMA, _BATCH = 4, 1, 3


def read_batches(whole: pa.Buffer, schema: pa.Schema, rows: int | None, what: str) -> list[pa.RecordBatch]:
    """Read the record batches of an Arrow file. The batches refer to the bytes of the file, or to decompressed buffers.

    The schema is compared with the expected schema before Arrow sees the file. All offsets and lengths stay within the
    bytes of the file. A compressed buffer (LZ4) never grows beyond the size in its metadata. The caller verifies the
    checksum.

    ``schema``: the schema of every batch; all its types must pass `is_readable_type`. ``rows``: the expected total
    number of rows, None for any. ``what``: the file, for messages. O(bytes of text and offsets + columns * batches).
    Raises `CorruptState`.
    """
    try:
        data = memoryview(whole).cast("B") if whole.size else memoryview(b"")
        messages = _read_messages(data)
        there = match_schema(next(messages)[0], data, schema)
        batches = [_read_record_batch(whole, message, begin, size, there) for message, begin, size in messages]
    except (ValueError, TypeError, LookupError, NotImplementedError) as error:  # Arrow's errors too
        found = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise _corrupt_error(what, found) from None
    total = sum(batch.num_rows for batch in batches)
    if rows is not None and total != rows:
        raise _corrupt_error(what, f"it has {total:,} rows, but {rows:,} are expected")
    return batches if there is schema else [conform_to_wider_schema(batch, schema) for batch in batches]


def read_batch(whole: pa.Buffer, schema: pa.Schema, rows: int | None, what: str) -> pa.RecordBatch:
    """Read an Arrow file that has exactly one record batch, as `read_batches` does.

    Also raises `CorruptState` for another number of batches.
    """
    batches = read_batches(whole, schema, rows, what)
    if len(batches) != 1:
        raise _corrupt_error(what, f"it has {len(batches):,} record batches, but one is expected")
    return batches[0]


def open_file_writer(sink: Any, schema: pa.Schema, compresses: bool = False) -> pa.ipc.RecordBatchFileWriter:
    """Open a writer for files that `read_batches` can read. Arrow's environment variables have no effect on the files.

    O(columns). ``compresses``: whether the writer compresses buffers with LZ4.
    """
    return pa.ipc.new_file(sink, schema, options=OPTIONS if compresses else PLAIN)


def restore_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch back to the types that it was written with.

    Arrow's reader drops extension types that are not registered.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [c if c.type.equals(f.type) else c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@cache
def is_readable_type(kind: pa.DataType) -> bool:
    """Return whether a file may have columns of a type.

    The allowed types are those that `ddflow.columns.schema.normalize_type` does not change at any level.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return is_readable_type(kind.storage_type)
    if pat.is_nested(kind):
        known = pat.is_struct(kind) or pat.is_union(kind) or _is_list(kind)
        return known and all(is_readable_type(kind.field(i).type) for i in range(kind.num_fields))
    return not (pat.is_dictionary(kind) or pat.is_run_end_encoded(kind) or kind in (pa.string_view(), pa.binary_view()))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind) or pat.is_map(kind))


def _read_messages(data: memoryview) -> Iterator[tuple[FlatTable, int, int]]:
    """Yield each message of a file, with the position and length of its body, in file order."""
    end = len(data) - len(MAGIC) - 4
    if end < 24 or bytes(data[:8]) != MAGIC + b"\0\0" or bytes(data[-len(MAGIC) :]) != MAGIC:
        raise MalformedMetadata("it is not an Arrow file")
    at, kind = 8, _SCHEMA
    while True:
        if bytes(data[at : at + 4]) != _MORE or at + 8 > end:
            raise MalformedMetadata(f"there is no message at byte {at:,}")
        size = int.from_bytes(data[at + 4 : at + 8], "little", signed=True)
        at += 8
        if size == 0:
            break
        if size < 0 or size % 8 or at + size > end:
            raise MalformedMetadata(f"the metadata at byte {at:,} has {size:,} bytes")
        message = read_root_table(data[at : at + size])
        body, at = message.read_number(3, "q"), at + size
        if message.read_number(0, "h") != _V5 or message.read_number(1, "B") != kind:
            raise MalformedMetadata(
                f"the message before byte {at:,} is neither a schema nor a batch, or has another version"
            )
        if body < 0 or body % 8 or at + body > end or (kind == _SCHEMA and body):
            raise MalformedMetadata(f"the message at byte {at:,} has {body:,} bytes")
        yield message, at, body
        at, kind = at + body, _BATCH
    footer = int.from_bytes(data[end : end + 4], "little", signed=True)
    if kind == _SCHEMA or at + footer != end:
        raise MalformedMetadata(f"its footer has {footer:,} bytes, but {end - at:,} are there")


class _BatchBody:
    """The arrays and buffers of a batch, in the order in which the message of the batch declares them.

    ``nodes``: (length, nulls) of each array.
    """

    def __init__(self, whole: pa.Buffer, message: FlatTable, begin: int, size: int) -> None:
        header = message.read_table(2)
        if header is None:
            raise MalformedMetadata("a message has no header")
        if header.field_position(4):
            raise MalformedMetadata("a batch has views, which no state has")
        compression = header.read_table(3)
        self.rows, most = header.read_number(0, "q"), RATIO * whole.size
        nodes, buffers = header.read_numbers(1, np.int64, 2), header.read_numbers(2, np.int64, 2)
        self.nodes = list(zip(nodes[::2], nodes[1::2], strict=True))
        places = list(zip(buffers[::2], buffers[1::2], strict=True))
        if not 0 <= self.rows <= most or any(not 0 <= nulls <= n <= most for n, nulls in self.nodes):
            raise MalformedMetadata(
                f"a batch of {self.rows:,} rows has columns of other lengths, or more than {most:,} rows"
            )
        last = 0
        for offset, length in places:
            if length < 0 or offset % 8 or offset < last or offset + length > size:
                raise MalformedMetadata(f"a buffer of {length:,} bytes at {offset:,} of {size:,}, after {last:,}")
            last = offset + length
        self.buffers = [whole.slice(begin + offset, length) for offset, length in places]
        if compression is not None:
            check_compression(compression)
            self.buffers = [decompress_buffer(buffer) for buffer in self.buffers]
        self.node = self.buffer = 0

    def next_node(self) -> tuple[int, int]:
        """Return the length and the number of nulls of the next array."""
        if self.node == len(self.nodes):
            raise MalformedMetadata("a batch has too few arrays")
        self.node += 1
        return self.nodes[self.node - 1]

    def next_buffer(self) -> pa.Buffer:
        """Return the next buffer."""
        if self.buffer == len(self.buffers):
            raise MalformedMetadata("a batch has too few buffers")
        self.buffer += 1
        return self.buffers[self.buffer - 1]


def _read_record_batch(
    whole: pa.Buffer, message: FlatTable, begin: int, size: int, schema: pa.Schema
) -> pa.RecordBatch:
    body = _BatchBody(whole, message, begin, size)
    columns = []
    for field in schema:
        start, kind = (body.node, body.buffer), _validation_type(field.type)
        plain = kind == field.type
        column = _build_array(body, field.type if plain else kind)
        if len(column) != body.rows:
            raise MalformedMetadata(f"the column {field.name} has {len(column):,} rows of {body.rows:,}")
        column.validate(full=True)
        if not plain:
            body.node, body.buffer = start
            column = _build_array(body, field.type)
        columns.append(column)
    if body.node != len(body.nodes) or body.buffer != len(body.buffers) or (body.rows and not columns):
        raise MalformedMetadata("a batch has more arrays, buffers or rows than columns")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _build_array(body: _BatchBody, kind: pa.DataType) -> pa.Array:
    """Build the next array, of any type that `is_readable_type` accepts. Only sizes are checked, not values."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_build_array(body, kind.storage_type))
    rows, nulls = body.next_node()
    if pat.is_null(kind):
        return pa.nulls(rows)
    if pat.is_union(kind):
        own = [None, *(body.next_buffer() for _ in range(1 if kind.mode == "sparse" else 2))]
        nulls = 0
    else:
        bits = body.next_buffer()
        more = 0 if pat.is_struct(kind) or pat.is_fixed_size_list(kind) else 2 if _is_text_or_binary(kind) else 1
        own = [bits if nulls else None, *(body.next_buffer() for _ in range(more))]
    children = [_build_array(body, kind.field(i).type) for i in range(kind.num_fields)]
    if pat.is_map(kind) and (children[0].null_count or children[0].field(0).null_count):
        # Refuse a null key here, because Arrow would abort the process.
        raise MalformedMetadata("a map has a key that is null")
    return pa.Array.from_buffers(kind, rows, own, nulls, children=children or None)


def _is_text_or_binary(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or pat.is_binary(kind) or pat.is_large_binary(kind))


@cache
def _validation_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to use when Arrow validates an array of the type ``kind``.

    The returned type has the same memory layout. For ``kind`` itself, Arrow would refuse fractional days, times past
    midnight and decimals with too many digits. A step accepts the values that Arrow would refuse, because it reads them
    as numbers.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _validation_type(kind.storage_type)
    if pat.is_date64(kind) or pat.is_time(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pat.is_decimal(kind):
        return pa.binary(kind.bit_width // 8)
    if not pat.is_nested(kind):
        return kind
    own = [kind.field(i) for i in range(kind.num_fields)]
    fields = [field.with_type(_validation_type(field.type)) for field in own]
    if all(new.type == old.type for new, old in zip(fields, own, strict=True)) and not pat.is_map(kind):
        return kind
    if pat.is_struct(kind):
        return pa.struct(fields)
    if pat.is_union(kind):
        return pa.union(fields, kind.mode, kind.type_codes)
    if pat.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pat.is_large_list(kind) else pa.list_(fields[0])


def _corrupt_error(what: str, found: str) -> CorruptState:
    return CorruptState(
        what,
        found,
        ErrorText(
            *(
                "it is damaged, or ddflow did not write it; restore it from a backup, go back with ",
                CommandFix("rollback"),
            ),
            ", or replay the log into a new state",
        ),
    )

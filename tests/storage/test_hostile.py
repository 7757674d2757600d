"""Test malicious manifests and Arrow files with valid checksums: each gives an error or a value, nothing else.

Child processes read the mutants, so that a signal is seen. A child reports each mutant's seed before it reads it, and
has 128 MB of extra memory and 20 seconds a mutant. All parts of the result are accessed. To read mutant 17 by hand:
``PYTHONPATH=tests:tests/support python tests/storage/test_hostile.py arrow 17 1``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import random
import re
import resource
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import mid_test, sample
from kinds import ENCODED, PLAIN
from messages import raises
from test_manifest import WHERE, body_of, encoded, typical

from ddflow.columns.wider import find_widening
from ddflow.errors import CorruptState
from ddflow.storage.files.arrow_file import RATIO, is_readable_type, open_file_writer, read_batch, read_batches
from ddflow.storage.files.flatbuffer import MalformedMetadata, read_root_table
from ddflow.storage.manifest import FORMAT, Manifest

ROOM = 128 << 20
"""Bytes that a child may take for its mutants."""
MUTANTS = {"arrow": 7_000, "manifest": 3_000, "bit": 18_192}
FOUND: list[tuple[str, int, int]] = [("manifest", 1_053_888, 1)]
"""Seeds that once failed, each with a count of one."""
CHUNKS = [
    (kind, first, min(4_000, count - first)) for kind, count in MUTANTS.items() for first in range(0, count, 4_000)
]
MANY = ["bool", "string", "list of text", "map", "dense union"]
"""Types of the file of which every bit is turned."""
BAD_NUMBERS = [
    0,
    1,
    -1,
    7,
    8,
    255,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32 - 1,
    2**33,
    2**62,
    2**63 - 1,
    -(2**63),
]


def file_of(batches: list[pa.RecordBatch], schema: pa.Schema, compression: str | None = None) -> bytes:
    """An Arrow file."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) if compression else open_file_writer(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def read(data: bytes, schema: pa.Schema, rows: int | None = None) -> list[pa.RecordBatch]:
    """The batches of a file."""
    return read_batches(pa.py_buffer(data), schema, rows, "the file x")


def batch_of(chance: random.Random) -> pa.RecordBatch:
    """Rows of a few types of all."""
    arrays = [PLAIN[chance.choice(sorted(PLAIN))] for _ in range(chance.randint(1, 3))]
    times = chance.choice([1, 1, 1, 5, 40])
    rows = min(map(len, arrays)) * times
    columns = [pa.concat_arrays([array] * times).slice(0, rows) for array in arrays]
    return pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(columns))])


def confused(one: bytes, other: bytes) -> bytes:
    """A file with the schema of one and the batches of another."""
    return one[: Spans(one).metadata[0][1]] + other[Spans(other).metadata[0][1] :]


class Spans:
    """Where the parts of a file are: ``metadata`` and ``bodies`` as (begin, end), ``lists``: of nodes and buffers."""

    def __init__(self, data: bytes) -> None:
        self.metadata: list[tuple[int, int]] = []
        self.bodies: list[tuple[int, int]] = []
        self.lists: list[tuple[int, int]] = []
        at = 8
        while size := struct.unpack_from("<i", data, at + 4)[0]:
            begin, end = at + 8, at + 8 + size
            message = read_root_table(memoryview(data)[begin:end])
            body = message.read_number(3, "q")
            self.metadata.append((at, end))
            if body:
                self.bodies.append((end, end + body))
            header = message.read_table(2)
            if message.read_number(1, "B") == 3 and header is not None:
                for slot in (1, 2):
                    first, count = header._find_vector(slot, 16)
                    self.lists += [(begin + first + 16 * i, begin + first + 16 * i + 16) for i in range(count)]
            at = end + body
        self.end = at


def put(data: bytes, at: int, new: bytes) -> bytes:
    """The same bytes with others in one place."""
    return (data[:at] + new + data[at + len(new) :])[: len(data)]


def number(chance: random.Random, wide: int, size: int) -> bytes:
    """A number that may make trouble, in so many bytes."""
    value = chance.choice([*BAD_NUMBERS, size, size - 8, chance.randint(0, 2 * size), chance.randint(-64, 64)])
    return (value % (1 << 8 * wide)).to_bytes(wide, "little")


def flipped(chance: random.Random, data: bytes, begin: int, end: int) -> bytes:
    """A few bits, somewhere in a span."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8]) if begin < (end := min(end, len(data))) else 0):
        out[chance.randrange(begin, end)] ^= 1 << chance.randrange(8)
    return bytes(out)


def aligned(chance: random.Random, data: bytes, begin: int, end: int) -> bytes:
    """A number in place of another, somewhere in a span."""
    wide = chance.choice([2, 4, 4, 8])
    return put(data, chance.randrange(begin, max(end - 7, begin + 1)) // wide * wide, number(chance, wide, len(data)))


def spliced(chance: random.Random, data: bytes, spans: Spans) -> bytes:
    """Bytes of one place in another, or put in, or taken out."""
    begin, at = chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)
    piece = data[begin : begin + 8 * chance.randint(1, 16)]
    cut = chance.choice([0, len(piece), len(piece), 8])
    return data[:at] + (piece if cut != 8 else b"") + data[at + cut :]


def repeated(chance: random.Random, data: bytes, spans: Spans) -> bytes:
    """A message once more, or none, or the footer of another length."""
    begin, _ = chance.choice(spans.metadata)
    following = [other for other, _ in spans.metadata if other > begin]
    end = following[0] if following else spans.end
    times = chance.choice([0, 2, 50])
    return data[:begin] + data[begin:end] * times + data[end:]


def noise(chance: random.Random, data: bytes, spans: Spans) -> bytes:
    """Bits anywhere."""
    return flipped(chance, data, 0, len(data))


def in_metadata(chance: random.Random, data: bytes, spans: Spans) -> bytes:
    """Bits or numbers in a message's metadata."""
    return chance.choice([flipped, aligned])(chance, data, *chance.choice(spans.metadata))


def in_lists(chance: random.Random, data: bytes, spans: Spans) -> bytes:
    """Lengths, nulls and offsets as a batch declares them."""
    begin, _ = chance.choice(spans.lists or spans.metadata)
    return put(data, begin + chance.choice([0, 8]), number(chance, 8, len(data)))


def in_body(chance: random.Random, data: bytes, spans: Spans) -> bytes:
    """Bits or numbers among values, offsets and validity."""
    return chance.choice([flipped, aligned])(chance, data, *chance.choice(spans.bodies or spans.metadata))


WAYS: list[Callable[[random.Random, bytes, Spans], bytes]] = [
    noise,
    in_metadata,
    in_lists,
    in_lists,
    in_body,
    in_body,
    spliced,
    repeated,
]


def arrow_mutant(seed: int) -> str:
    """Read one; how it went."""
    chance = random.Random(f"arrow {seed}")
    batch = batch_of(chance)
    schema, rows = batch.schema, chance.choice([None, len(batch)])
    kind = chance.random()
    if kind < 0.04:
        data = file_of([batch], schema, chance.choice(["zstd", "lz4"]))
    elif kind < 0.08:
        other = chance.choice([array for array, _ in ENCODED.values()])
        data = file_of([pa.RecordBatch.from_arrays([other], ["c0"])], pa.schema({"c0": other.type}))
    elif kind < 0.18:
        # Another's batches, half of the time under the schema that is expected.
        another = batch_of(chance)
        data = file_of([another], another.schema)
        data = chance.choice([data, confused(file_of([], schema), data)])
    else:
        data = file_of([batch] * chance.choice([1, 1, 2]), schema)
        spans = Spans(data)
        for _ in range(chance.choice([1, 1, 1, 2, 4])):
            data = chance.choice(WAYS)(chance, data, spans)
    return how(data, schema, rows)


def bit_mutant(seed: int) -> str:
    """Read a file of many types with one bit the other way, each in turn; how it went."""
    batch = pa.RecordBatch.from_arrays([PLAIN[name].slice(0, 3) for name in MANY], MANY)
    data = bytearray(file_of([batch], batch.schema))
    data[seed // 8 % len(data)] ^= 1 << seed % 8
    return how(bytes(data), batch.schema, 3)


def how(data: bytes, schema: pa.Schema, rows: int | None) -> str:
    """Read a file, and all that comes out: "read", or what was found."""
    try:
        batches = read(data, schema, rows)
    except CorruptState as error:
        assert "the file x: " in str(error) and len(str(error)) < 2000
        return reason(error)
    assert rows is None or sum(map(len, batches)) == rows
    for each in batches:
        assert each.schema == schema
        touch(each)
    return "read"


def reason(error: CorruptState) -> str:
    """What was found, without the values."""
    return re.sub(r"-?\d[\d,]*|['\"].*['\"]|\(.*|[\[{].*", "#", error.found)[:50]


def touch(batch: pa.RecordBatch) -> None:
    """Read all values of a batch in several ways."""
    file_of([batch], batch.schema)
    batch.slice(len(batch) // 2).take(pa.array(range(min(len(batch) - len(batch) // 2, 100)), pa.int64()))
    assert sum(map(leaves, batch.columns)) <= RATIO * 10_000_000
    for column in batch.columns:
        if leaves(column) < 100_000:
            # Of days, times and decimals there are such as Python knows none of.
            with contextlib.suppress(ValueError, OverflowError, ArithmeticError):
                column.to_pylist()


def leaves(array: pa.Array) -> int:
    """Values in an array and in all arrays within."""
    if isinstance(array, pa.ExtensionArray):
        return leaves(array.storage)
    if pa.types.is_map(array.type):
        return len(array) + leaves(array.keys) + leaves(array.items)
    if pa.types.is_union(array.type) or pa.types.is_struct(array.type):
        return len(array) + sum(leaves(array.field(i)) for i in range(array.type.num_fields))
    return len(array) + (leaves(array.values) if pa.types.is_nested(array.type) else 0)


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values within a value of JSON."""
    within = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for name, each in within for place in places(each, (*way, name)))]


def nasty(chance: random.Random, old: Any) -> Any:
    """A value that may make trouble."""
    number = chance.choice([*BAD_NUMBERS, 2**64, 10**400, -1.5, 1e308, 2**63])
    text = chance.choice(["", "\0", "\ud800", "x" * 20_000, "../../x", "a" * 32, "0" * 16, "step", "ß" * 32])
    deep: Any = 1
    for _ in range(chance.choice([3, 250, 700])):
        deep = chance.choice([[deep], {"x": deep}])
    return chance.choice(
        [
            number,
            number,
            text,
            text,
            deep,
            None,
            True,
            [],
            {},
            [old],
            {"x": old},
            [old] * 100,
            str(old),
            [number] * 500,
            {text: old},
            {str(i): i for i in range(500)},
        ]
    )


def changed(chance: random.Random, body: Any, way: tuple[Any, ...]) -> Any:
    """The body with something else in one place, if there still is one."""
    if not way:
        return nasty(chance, body) if chance.random() < 0.2 else body
    try:
        holder = body
        for name in way[:-1]:
            holder = holder[name]
        old = holder[way[-1]]
        if chance.random() < 0.1:
            del holder[way[-1]]
        elif chance.random() < 0.1 and isinstance(holder, dict):
            holder[chance.choice(["extra", "rows", "number", "\ud800"])] = nasty(chance, 1)
        else:
            holder[way[-1]] = nasty(chance, old)
    except (LookupError, TypeError):
        return body
    return body


def manifest_mutant(seed: int) -> str:
    """Read one; how it went."""
    chance = random.Random(f"manifest {seed}")
    body: Any = body_of(typical())
    for way in chance.sample(places(body), chance.choice([1, 1, 2, 3])):
        body = changed(chance, body, way)
    text = json.dumps(body, separators=(",", ":"))
    if chance.random() < 0.2:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(["NaN", "[" * 100_000, '{"a":' * 5000, "9" * 10_000, "\\", "\0"]) + text[at:]
    data = encoded(text.encode("utf-8", "surrogatepass"), FORMAT + chance.choice((-1, 1)) * (chance.random() < 0.02))
    if chance.random() < 0.05:
        data = flipped(chance, data, 0, 60)
    try:
        manifest = Manifest.decode(data, 7, WHERE)
    except CorruptState as error:
        assert len(str(error)) < 2000, len(str(error))
        return reason(error)
    manifest._check_invariants()
    return "read"


READ = {"arrow": arrow_mutant, "bit": bit_mutant, "manifest": manifest_mutant}


def as_child(kind: str, first: int, count: int) -> None:
    """Read mutants one after the other, in little memory and time; the last line tells how each went."""
    faulthandler.enable()
    taken = int(re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_DATA, (taken + ROOM, taken + ROOM))
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        print(seed, flush=True)
        signal.setitimer(signal.ITIMER_REAL, 20)
        seen[READ[kind](seed)] += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps(seen))


def outcome(kind: str, first: int, count: int) -> dict[str, int]:
    """What a child says; it fails the test when it ends otherwise."""
    done = subprocess.run([sys.executable, __file__, kind, str(first), str(count)], capture_output=True, text=True)
    lines = done.stdout.splitlines() or ["no mutant"]
    assert done.returncode == 0, f"{kind} mutant {lines[-1]}: ended with {done.returncode}\n{done.stderr[-3000:]}"
    seen: dict[str, int] = json.loads(lines[-1])
    assert sum(seen.values()) == count
    return seen


@mid_test
@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "first", "count"), FOUND + sample(CHUNKS, 2, __name__))
def test_mutants_are_errors_or_values(kind: str, first: int, count: int) -> None:
    seen = outcome(kind, first, count)
    # They get everywhere: through to the end, and to many different checks.
    assert count < 1000 or kind == "bit" or (seen["read"] > count // 50 and len(seen) > 12), seen


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "share"), [("arrow", 7), ("manifest", 3)])
def test_a_million_mutants_are_errors_or_values(kind: str, share: int) -> None:
    for first in range(1_000_000, 1_000_000 + 100_000 * share, 10_000):
        outcome(kind, first, 10_000)


def storage(kind: pa.DataType) -> pa.DataType:
    """The type that an extension is stored as."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("metadata", [None, {"written": "by another version of Arrow, whose bytes are others"}])
def test_what_a_state_holds_is_read_where_it_lies(name: str, metadata: dict[str, str] | None) -> None:
    array = PLAIN[name]
    assert is_readable_type(array.type)
    for part in (array, array.slice(1, 2), array.slice(0, 0)):
        batch = pa.record_batch({name: part, "n": list(range(len(part)))})
        data = file_of([batch, batch], batch.schema.with_metadata(metadata))
        for each in read(data, batch.schema, 2 * len(part)):
            assert each.schema == batch.schema and str(each.to_pydict()) == str(batch.to_pydict())
            begin = pa.py_buffer(data).address
            buffers = [buffer for column in each.columns for buffer in column.buffers() if buffer is not None]
            assert all(begin < buffer.address <= begin + len(data) for buffer in buffers)


def test_a_file_is_read_as_what_it_is_only() -> None:
    batches = {name: pa.record_batch({"c": array}) for name, array in PLAIN.items()}
    files = {name: file_of([batch], batch.schema) for name, batch in batches.items()}
    for name, data in files.items():
        for other, array in PLAIN.items():
            pair = storage(PLAIN[name].type), storage(array.type)
            if pair[0] != pair[1] and find_widening(*pair) != "read":
                with raises(CorruptState):
                    read(data, pa.schema({"c": array.type}))
                    raise AssertionError(f"{name} was read as {other}")
    for wrong in ({}, {"d": pa.int8()}, {"c": pa.int8(), "d": pa.int8()}):
        with raises(CorruptState):
            read(files["int8"], pa.schema(wrong))


@pytest.mark.parametrize("name", ENCODED)
def test_encodings_are_none_of_a_state(name: str) -> None:
    array, normal = ENCODED[name]
    assert not is_readable_type(array.type) and is_readable_type(normal)
    with raises(CorruptState):
        read(file_of([pa.record_batch({"c": array})], pa.schema({"c": array.type})), pa.schema({"c": normal}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.date64(),
        pa.time32("s"),
        pa.time64("ns"),
        pa.decimal32(3, 1),
        pa.decimal128(3, 1),
        pa.list_(pa.date64()),
        pa.map_(pa.int8(), pa.time32("s")),
    ],
    ids=str,
)
def test_days_times_and_decimals_that_a_step_takes_are_read_again(kind: pa.DataType) -> None:
    ends = pa.array([0, 1], pa.int32())

    def beyond(kind: pa.DataType) -> pa.Array:
        if pa.types.is_map(kind):
            return pa.MapArray.from_arrays(ends, pa.array([1], pa.int8()), beyond(kind.item_type))
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(ends, beyond(kind.value_type))
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(b"\x77" * 16)])

    batch = pa.RecordBatch.from_arrays([beyond(kind)], ["c"])
    with pytest.raises(pa.ArrowInvalid):
        batch.validate(full=True)
    (out,) = read(file_of([batch], batch.schema), batch.schema, 1)
    assert out.equals(batch)


def test_a_map_with_keys_that_are_null_is_refused() -> None:
    entries = pa.list_(pa.struct({"key": pa.string(), "value": pa.int8()}))
    for pairs in ([[{"key": None, "value": 1}]], [[None]]):
        batch = pa.RecordBatch.from_arrays([pa.array(pairs, entries)], ["c"])
        schema = pa.schema({"c": pa.map_(pa.string(), pa.int8())})
        with raises(CorruptState):
            read(confused(file_of([], schema), file_of([batch], batch.schema)), schema)


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    zeros = pa.Array.from_buffers(pa.int64(), 1 << 19, [None, pa.py_buffer(bytes(4 << 20))])
    batch = pa.record_batch({"n": zeros})
    bomb, packed = (file_of([batch], batch.schema, codec) for codec in ("zstd", "lz4"))
    # The same, without saying that it is compressed.
    liar = file_of([batch.slice(0, 9)], batch.schema).replace(struct.pack("<q", 9), struct.pack("<q", 1 << 40))
    greater = packed.replace(struct.pack("<q", 4 << 20), struct.pack("<q", 64 << 20))
    assert len(bomb) < 1 << 17 and greater != packed
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with raises(CorruptState):
            read(bomb, batch.schema, 1 << 19)
        with raises(CorruptState):
            read(greater, batch.schema)
        with raises(CorruptState):
            read(liar, batch.schema)
        assert pool.max_memory() < 1 << 16
        with pa.ipc.open_file(pa.BufferReader(bomb)) as reader:
            assert reader.get_batch(0).num_rows == 1 << 19
        assert pool.max_memory() >= 4 << 20
    finally:
        pa.set_memory_pool(before)


def test_a_file_of_one_batch_has_one() -> None:
    batch = pa.record_batch({"n": [1, 2]})
    for times in (0, 1, 2):
        data = pa.py_buffer(file_of([batch] * times, batch.schema))
        if times == 1:
            assert read_batch(data, batch.schema, 2, "the file x").equals(batch)
            continue
        with raises(CorruptState):
            read_batch(data, batch.schema, None, "the file x")


def test_nothing_outside_of_a_flatbuffer_is_read() -> None:
    vtable = struct.pack("<I4HiI", 12, 6, 8, 4, 0, 8, 4)  # a table at 12 with its vtable at 4, and one field at 16
    good = vtable + struct.pack("<I", 3) + b"abc"
    table = read_root_table(memoryview(good))
    assert (table.read_text(0), table.read_text(1), table.read_number(0, "I"), table.read_table(1)) == (
        b"abc",
        b"",
        4,
        None,
    )
    assert read_root_table(memoryview(vtable + struct.pack("<I2i", 2, 5, -6))).read_numbers(0, np.int32) == [5, -6]
    for i in range(len(good)):
        with pytest.raises(MalformedMetadata):
            read_root_table(memoryview(good[:i])).read_text(0)
    with pytest.raises(MalformedMetadata, match="a vtable of 200 bytes"):
        read_root_table(memoryview(put(good, 4, struct.pack("<H", 200))))
    with pytest.raises(MalformedMetadata, match="a vector of 3 times 8 bytes"):
        table.read_numbers(0, np.int64)
    with pytest.raises(MalformedMetadata, match="a vector of 3 times 4 bytes"):
        table.count_tables(0)
    with pytest.raises(MalformedMetadata, match="2 bytes at -88 of 27"):
        read_root_table(memoryview(put(good, 12, struct.pack("<i", 100))))


def test_what_is_no_file_of_arrow_is_an_error() -> None:
    batch = pa.record_batch({"n": [1, 2]})
    whole = file_of([batch], batch.schema)
    for data in (b"", b"ARROW1", b"ARROW1\0\0ARROW1", b"PAR1" * 20, bytes(1000), whole + b"\0", whole[8:]):
        with raises(CorruptState):
            read(data, batch.schema)
    for i in range(len(whole)):
        with raises(CorruptState):
            read(whole[:i], batch.schema)


def test_files_are_written_the_same_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"n": [1, 2]})
    usual = file_of([batch], batch.schema)
    monkeypatch.setenv("ARROW_PRE_0_15_IPC_FORMAT", "1")
    monkeypatch.setenv("ARROW_PRE_1_0_METADATA_VERSION", "1")
    assert file_of([batch], batch.schema) == usual
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert bytes(sink.getvalue()) != usual


if __name__ == "__main__":
    as_child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

"""Test that no input accepts values outside their type, although Arrow accepts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import raises

import ddflow as dd
from ddflow.columns.schema import MANY, is_large_ascii_array

DAY = 86_400


def of_buffers(kind: pa.DataType, *buffers: bytes, rows: int = 1) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, buffers)])


BROKEN = of_buffers(pa.string(), np.array([0, 1], np.int32).tobytes(), b"\xff")
UNREAL: dict[str, pa.Array] = {
    "25:00:00": pa.array([25 * 3600 * 10**6]).cast(pa.time64("us")),
    "-01:00:00": pa.array([-3600], pa.int32()).view(pa.time32("s")),
    "24:00:00": pa.array([DAY * 10**9]).cast(pa.time64("ns")),
    "year 0": pa.array([-719_163], pa.int32()).view(pa.date32()),
    "year 10000": pa.array([2_932_897], pa.int32()).view(pa.date32()),
    "year 10000 in ms": pa.array([2_932_897 * DAY * 1000]).view(pa.date64()),
    "half a day": pa.array([5]).view(pa.date64()),
    "infinity": pa.array([2**63 - 1]).view(pa.timestamp("us", "UTC")),
    "seconds": pa.array([253_402_300_800]).view(pa.timestamp("s")),
    "no UTF-8": BROKEN,
    "digits": of_buffers(pa.decimal128(5, 0), (10**10).to_bytes(16, "little")),
    "within a list": pa.ListArray.from_arrays([0, 1], pa.array([-1]).view(pa.time64("us"))),
    "within a struct": pa.StructArray.from_arrays([BROKEN], ["s"]),
    "within a map": pa.MapArray.from_arrays([0, 1], pa.array([1]), pa.array([-1]).view(pa.time64("us"))),
    "offsets": pa.ListArray.from_buffers(
        pa.list_(pa.int64()), 3, [None, pa.py_buffer(np.array([0, 2, 1, 2], np.int32))], children=[pa.array([1, 2])]
    ),
}
LAST = {
    pa.time32("s"): DAY - 1,
    pa.time64("us"): DAY * 10**6 - 1,
    pa.date32(): 2_932_896,
    pa.date64(): 2_932_896 * DAY * 1000,
    pa.timestamp("ms"): 253_402_300_800_000 - 1,
    pa.timestamp("ns"): 2**63 - 1,
}


def opened(kind: pa.DataType) -> Any:
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", pa.schema({"id": pa.int64(), "v": kind}), dd.Upsert(key="id")))
    return flow.open()


@pytest.mark.parametrize("name", UNREAL)
def test_a_value_that_its_type_does_not_have_is_refused(name: str) -> None:
    array = UNREAL[name]
    ids = pa.array(np.arange(len(array)))
    table = pa.table({"id": ids, "v": array})
    doors = {"its schema": table, "two chunks": pa.concat_tables([table, table]), "another order": table.select([1, 0])}
    if not pa.types.is_nested(array.type) and name != "no UTF-8":
        doors["a dictionary"] = pa.table({"id": ids, "v": pa.DictionaryArray.from_arrays([0], array)})
    for given in doors.values():
        with opened(array.type) as engine:
            with raises(dd.errors.SchemaMismatch):
                engine.step({"t": given})
            assert engine.read("t").num_rows == 0


@pytest.mark.parametrize("kind", LAST, ids=str)
def test_the_last_value_of_a_type_is_taken(kind: pa.DataType) -> None:
    word = pa.int32() if kind.bit_width == 32 else pa.int64()
    values = pa.array([0, LAST[kind], None], word).view(kind)
    with opened(kind) as engine:
        engine.step({"t": pa.table({"id": [1, 2, 3], "v": values})})
        assert engine.read("t").sort_by("id")["v"].combine_chunks().view(word).to_pylist() == [0, LAST[kind], None]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_many_texts_are_looked_at_as_few_are(kind: pa.DataType) -> None:
    n, width = MANY + 7, np.int64 if pa.types.is_large_string(kind) else np.int32
    ids, offsets = pa.array(np.arange(n)), np.arange(n + 1, dtype=width)
    back, beyond, before = offsets.copy(), offsets.copy(), offsets.copy()
    back[5:7], beyond[5], before[5] = back[6:4:-1], n + 1, -1
    last, accent, cut = b"a" * (n - 1) + b"\xff", b"a" * (n - 2) + "ä".encode(), b"\xc3\xa4" * n
    for at, data in ((offsets, last), (offsets, cut), *((each, b"a" * n) for each in (back, beyond, before))):
        assert not is_large_ascii_array(of_buffers(kind, at.tobytes(), data, rows=n))
    with opened(kind) as engine:
        apart = np.append(offsets[:-2], np.full(2, n, width))
        taken = of_buffers(kind, apart.tobytes(), accent, rows=n)
        assert is_large_ascii_array(taken.slice(0, n - 2)) and not is_large_ascii_array(taken)
        for values in (
            taken,
            pa.nulls(n, kind),
            pa.array(["", None, "a"] * n, kind).slice(5, n),
            taken.slice(0, n - 2),
        ):
            engine.step({"t": pa.table({"id": ids.slice(0, len(values)), "v": values})})
            assert engine.read("t").sort_by("id").slice(0, len(values))["v"].combine_chunks().equals(values)


def test_a_slice_is_looked_at_alone() -> None:
    """What a slice leaves out is no matter: neither its values, nor, with lists, the time that they take."""
    times = pa.array([-1, 5]).view(pa.time64("us"))
    with opened(pa.list_(pa.time64("us"))) as engine:
        lists = pa.ListArray.from_arrays([0, 1, 2], times)
        engine.step({"t": pa.table({"id": [1, 2], "v": lists}).slice(1)})
        assert engine.read("t").num_rows == 1


def test_polars_and_frames() -> None:
    frame = polars.DataFrame({"id": [1], "v": [2_932_897]}).with_columns(polars.col("v").cast(polars.Date))
    with opened(pa.date32()) as engine, raises(dd.errors.SchemaMismatch):
        engine.step({"t": frame})


def test_a_file_of_parquet(tmp_path: Any) -> None:
    pq.write_table(pa.table({"id": [1], "v": UNREAL["year 10000"]}), tmp_path / "a.parquet")
    with opened(pa.date32()) as engine, raises(dd.errors.SchemaMismatch):
        engine.step({"t": str(tmp_path / "a.parquet")})

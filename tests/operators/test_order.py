"""Test that order words compare as docs/semantics.md defines for events, for every type of order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kinds import FLAT
from rules import canonical, rank

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.columns.schema import is_word_type
from ddflow.operators.upsert.orders import Order
from ddflow.plan.inputs.bind import bind_upserts
from ddflow.plan.inputs.spec import Upsert

SECRET = Secret(1, 2)
WORDS = [kind for kind in FLAT if is_word_type(FLAT[kind].type)]
RANKED = [kind for kind in FLAT if not is_word_type(FLAT[kind].type)]


def order_of(columns: dict[str, pa.Array], **spec: Any) -> tuple[Order, pa.RecordBatch]:
    """An order over an input of these columns and a key, and their rows as a batch."""
    n = len(next(iter(columns.values())))
    batch = pa.record_batch({"k": pa.array(range(n)), **columns})
    return Order(bind_upserts("s", batch.schema, Upsert(key="k", **spec))), batch


def words_of(order: Order, batch: pa.RecordBatch, gone: list[int] | None = None, original: Any = None) -> list[Any]:
    """The words of each event, ranked ones too, as tuples."""
    gone_flags = np.array(gone or [0] * batch.num_rows, np.uint8)
    words = order.compute_words(batch, original, gone_flags)
    if order.ranks:
        order.write_ranked_words(
            batch,
            gone_flags,
            words,
            None,
            np.empty(0, np.uint8),
            np.empty((0, order.event_word_count), np.int64),
            SECRET,
        )
    assert words.shape == (batch.num_rows, order.event_word_count) and words.dtype == np.int64
    return [tuple(row) for row in words.tolist()]


def assert_same_order(found: list[Any], keys: list[Any]) -> None:
    for i in range(len(found)):
        for j in range(len(found)):
            assert (found[i] < found[j]) == (keys[i] < keys[j]), (keys[i], keys[j])


def keys_of(*columns: pa.Array) -> list[Any]:
    return list(zip(*([rank(canonical(value)) for value in column.to_pylist()] for column in columns), strict=True))


@pytest.mark.parametrize("kind", FLAT)
def test_every_flat_type_is_ordered_with_null_smallest_and_nan_largest(kind: str) -> None:
    order, batch = order_of({"at": FLAT[kind]}, order_by="at")
    assert_same_order(words_of(order, batch), keys_of(FLAT[kind]))
    turned = batch.take(pa.array(range(batch.num_rows)[::-1]))
    assert_same_order(words_of(order, turned.slice(1)), keys_of(turned.slice(1).column("at")))


@pytest.mark.parametrize("kind", ["int64", "float64", "bool", "string", "decimal32"])
def test_a_composite_order_is_compared_column_by_column(kind: str) -> None:
    one, two = FLAT["int32"], FLAT[kind]
    pairs = [(i % len(one), i % len(two)) for i in range(len(one) * len(two))]
    columns = {"a": one.take(pa.array([a for a, _ in pairs])), "b": two.take(pa.array([b for _, b in pairs]))}
    order, batch = order_of(columns, order_by=["a", "b"])
    assert_same_order(words_of(order, batch), keys_of(*columns.values()))


@pytest.mark.parametrize("kind", WORDS)
def test_the_values_come_back_from_their_words(kind: str) -> None:
    for field in (pa.field("at", FLAT[kind].type), pa.field("at", FLAT[kind].type, nullable=False)):
        array = FLAT[kind] if field.nullable else FLAT[kind].drop_null()
        schema = pa.schema([pa.field("k", pa.int64()), field, pa.field("t", pa.int64())])
        spec = Upsert(key="k", order_by="at", time="t", late="advance")
        order = Order(bind_upserts("s", schema, spec))
        batch = pa.record_batch([pa.array(range(len(array))), array, pa.array([0] * len(array))], schema=schema)
        found = order.decode_orders(order.compute_words(batch, np.arange(len(array)), None), None)
        assert [column.type for column in found] == [array.type]
        assert [canonical(x) for x in found[0].to_pylist()] == [canonical(x) for x in array.to_pylist()]


@pytest.mark.parametrize("kind", RANKED)
def test_what_has_no_word_is_ranked_anew_together_with_what_keys_hold(kind: str) -> None:
    array = FLAT[kind]
    order, batch = order_of({"at": array}, order_by="at")
    assert order.words == order.event_word_count == 1 and [field.type for field in order.hidden] == [array.type]
    held = pa.table({"k": pa.array(range(len(array))), "at": array[::-1], order.hidden[0].name: array[::-1]})
    words, old = order.compute_words(batch, None, None), np.full((len(array), 1), -7, np.int64)
    order.write_ranked_words(
        batch, np.zeros(len(array), np.uint8), words, held, np.ones(len(array), np.uint8), old, SECRET
    )
    assert_same_order([*map(tuple, words.tolist()), *map(tuple, old.tolist())], keys_of(array) + keys_of(array[::-1]))


def test_the_original_time_decides_first_where_late_events_are_advanced() -> None:
    times, at = [5, 3, 5, 3], [1, 9, 0, 9]
    order, batch = order_of({"at": pa.array(at), "t": pa.array(times)}, order_by="at", time="t", late="advance")
    found = words_of(order, batch, original=np.array(times))
    assert_same_order(found, list(zip(times, at, strict=True)))
    assert order.timed and order.base == 3  # the time, then null or not, then the word


@pytest.mark.parametrize("tie", ["last", "first"])
def test_the_sequence_breaks_ties_forwards_or_backwards(tie: str) -> None:
    at, seq = pa.array([1, 1, 1, 2]), pa.array([5, 2**63 + 1, 0, 0], pa.uint64())
    order, batch = order_of({"at": at, "n": seq}, order_by="at", seq="n", tie=tie)
    sign = 1 if tie == "last" else -1
    assert_same_order(
        words_of(order, batch), [(a, sign * s) for a, s in zip(at.to_pylist(), seq.to_pylist(), strict=True)]
    )


@pytest.mark.parametrize("kind", ["int64", "float64", "string", "decimal64", "bool"])
def test_under_greatest_a_value_beats_a_delete_and_columns_decide_left_to_right(kind: str) -> None:
    one = FLAT[kind]
    n = len(one)
    columns = {"a": pa.array([1] * n + [2] * n), "b": pa.concat_arrays([one, one]), "at": pa.array([0] * 2 * n)}
    order, batch = order_of(columns, order_by="at", tie="greatest")
    gone = [i % 3 == 0 for i in range(2 * n)]
    keys = [(0,) if g else (1, *key) for g, key in zip(gone, keys_of(columns["a"], columns["b"]), strict=True)]
    assert_same_order(words_of(order, batch, [int(g) for g in gone]), keys)


def test_under_greatest_columns_that_do_not_count_as_a_change_do_not_break_ties() -> None:
    at, seen = pa.array([0, 0]), pa.array([["x"], ["y"]])
    order, batch = order_of(
        {"at": at, "seen": seen, "v": pa.array([1, 1])}, order_by="at", tie="greatest", noop_ignore=["seen"]
    )
    assert len(set(words_of(order, batch))) == 1


def test_under_greatest_a_value_beats_a_delete_even_where_no_column_counts() -> None:
    order, batch = order_of({"at": pa.array([0, 0])}, order_by="at", tie="greatest", noop_ignore=["at"])
    delete, value = words_of(order, batch, [1, 0])
    assert value > delete


def test_nothing_is_kept_where_arrival_decides() -> None:
    order, batch = order_of({"v": pa.array([1, 2])})
    assert (order.base, order.words, order.keeps, order.ties) == (0, 0, False, False)
    assert words_of(order, batch) == [(), ()]


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int64(), pa.int8(), pa.string()])
@pytest.mark.parametrize("nullable", [True, False])
def test_a_cell_of_the_least_order_is_one_that_was_set(kind: pa.DataType, nullable: bool) -> None:
    least = {pa.uint64(): 0, pa.int64(): -(2**63), pa.int8(): -128, pa.string(): ""}[kind]
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("o", kind, nullable=nullable), pa.field("n", pa.int64())])
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", schema, dd.Upsert("k", order_by="o", tie="first", versions="cell")))
    with flow.open() as engine:
        told = [engine.step({"rows": pa.table([[1], [least], [n]], schema=schema)}, n).verdicts for n in (1, 2)]
        assert [str(each) for each in told] == ["applied 1", "tie_lost 1"]
        assert engine.read("rows").column("n").to_pylist() == [1]

"""Test the record in a manifest of how its inputs were fed: its version, its size and its encoding."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from messages import raises
from parts_by_hand import Hands
from proof_case import ARRIVAL, BERN, EPOCH, SCHEMA, lie_in, one, plan, replaced

import ddflow as dd
from ddflow.engine.full_contents import decode_order, encode_order
from ddflow.errors import CorruptState, LogUnclear, SpecError
from ddflow.partitions.rescale import rescale
from ddflow.storage import feeding as module
from ddflow.storage.feeding import EVENTS, FULL, RESTATED, ROOM, FeedHistory, FeedMode, FeedRun
from ddflow.storage.fields import Decoder, decode_record, encode_record
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.tools.fsck import fsck


def test_the_record_goes_with_the_version_that_it_led_to() -> None:
    store = MemoryStore()
    log = replaced(store)
    with pytest.raises(SpecError), plan(ARRIVAL).open(store.reopen()) as engine:
        engine.replace("orders", one(1), 4, order=3)  # refused: no trace of it
    dd.rollback(store.reopen(), 2)
    found = load_newest_manifest(store)
    assert found is not None and found.fed["orders"] == FeedHistory(
        (FeedRun(1, 1, 1, EVENTS), FeedRun(2, 2, 1, FeedMode(FULL)))
    )
    assert dd.verify(store, {"orders": log[:2]}).ok
    rescale(store.reopen(), 4)
    assert dd.verify(store, {"orders": log[:2]}).ok
    rescale(store.reopen(), 1)
    with plan(ARRIVAL).open(store.reopen()) as engine:
        engine.compact()
        engine.replace("orders", log[2], 3, BERN)
    assert dd.verify(store, {"orders": log}).ok and fsck(store).ok


def test_what_many_tasks_are_given_are_events() -> None:
    store = MemoryStore()
    a, b, c = replaced(store)
    rescale(store.reopen(), 3)
    hands = Hands(plan(ARRIVAL), store.reopen(), None, random.Random(1))
    hands.epoch({"orders": one(8, 9)})
    hands.epoch({"orders": SCHEMA.empty_table()})
    hands.epoch({"orders": one(9, city="Chur")})
    hands.close()
    found = load_newest_manifest(store)
    assert found is not None and found.fed["orders"].runs[-1] == FeedRun(4, 6, 2, EVENTS)
    assert dd.verify(store, {"orders": [a, b, c, one(8, 9), one(9, city="Chur")]}).ok
    assert dd.verify(store, {"orders": [a, dd.Full(b), dd.Full(c), one(8), one(9, city="Chur")]}).ok


def test_forgetting_leaves_no_word_of_a_scope_and_counts_are_enough_for_a_marked_log() -> None:
    store, spec = MemoryStore(), EPOCH
    with plan(spec).open(store) as engine:
        engine.step({"orders": one(1, 2)}, 1)
        engine.replace("orders", one(2), 2, "city = 'Bern' or city = 'Zermatt'", order=424242)
        engine.replace("orders", one(3, at=5), 3)
        engine.compact(forget=True)
    every = [*store.shared.manifests.values(), *(data for data, _ in store.shared.blobs.values())]
    assert not any(b"Zermatt" in data or b"424242" in data for data in every)
    found = load_newest_manifest(store)
    assert found is not None and found.fed["orders"] == FeedHistory(
        (FeedRun(3, 3, 1, FeedMode(FULL)),), 2, events=1, full=1
    )
    marked = [one(1, 2), dd.Full(one(2), "city = 'Bern'", 424242), dd.Full(one(3, at=5))]
    assert dd.verify(store, {"orders": marked}).ok and dd.verify(store, {"orders": marked[2:]}).ok
    for log in ([one(1, 2), one(2), one(3, at=5)], [marked[1], *marked], [marked[0], dd.Restated(one(2)), marked[2]]):
        with raises(LogUnclear):
            dd.verify(store, {"orders": log})
    assert fsck(store).ok


def test_the_record_is_bounded_and_loses_no_call() -> None:
    fed = FeedHistory()
    for epoch in range(1, 100_001):
        fed = fed.add_call(epoch, EVENTS)
    assert fed == FeedHistory((FeedRun(1, 100_000, 100_000, EVENTS),))
    fed, kinds = FeedHistory(), Counter[str]()
    for epoch in range(1, 2_001):
        way = [EVENTS, FeedMode(FULL, f"day = '{epoch}'"), FeedMode(RESTATED), FeedMode(FULL, None, (epoch, "x"))][
            epoch % 4
        ]
        fed, kinds = fed.add_call(epoch, way), kinds + Counter([way.kind])
        assert sum(run.text_length for run in fed.runs) <= ROOM
    assert 100 < len(fed.runs) < 400 and fed.until == fed.runs[0].first - 1 and len(encode_record(fed)) < 3 * ROOM
    known = Counter(run.way.kind for run in fed.runs)
    assert {
        kind: known[kind] + n for kind, n in zip(module.WAYS, (fed.events, fed.full, fed.restated), strict=True)
    } == kinds
    assert decode_record(Decoder(FeedHistory), encode_record(fed), "m") == fed and fed.call_count == 2_000
    fed.check_calls(2_000)
    with pytest.raises(ValueError, match="up to epoch 2000, but the last epoch is 1999"):
        fed.check_calls(1_999)
    # A scope that is longer than all the room is not kept, and neither is what came before it.
    assert fed.add_call(2_001, FeedMode(FULL, "x" * ROOM)).runs == ()


ORDERS = {
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
    "int8": (pa.int8(), [-128, 127, None]),
    "float64": (pa.float64(), [-1.5, 1e300, float("inf"), 0.1, None]),
    "float32": (pa.float32(), [-0.5, 1.25, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "string": (pa.string(), ["", "ß\0\"'", None]),
    "binary": (pa.binary(), [b"", b"\0\xff", None]),
    "decimal": (pa.decimal128(38, 9), [Decimal("-1234567890123456789.123456789"), Decimal(0), None]),
    "timestamp": (pa.timestamp("ns", "Europe/Zurich"), [0, 2**62, None]),
    "plain timestamp": (pa.timestamp("s"), [datetime(1, 1, 1), datetime(9999, 12, 31), None]),
    "date32": (pa.date32(), [-1, 20_000, None]),
    "time64": (pa.time64("us"), [0, 86_399_999_999, None]),
    "duration": (pa.duration("ms"), [-5, 5, None]),
    "large_string": (pa.large_string(), ["x", None]),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_an_order_is_kept_in_words_that_give_it_back(kind: str) -> None:
    type_, values = ORDERS[kind]
    for value in values:
        column = pa.array([value], type_)
        schema = pa.schema([pa.field("o", type_)])
        words = encode_order(pa.RecordBatch.from_arrays([column], schema=schema))
        fed = FeedHistory((FeedRun(1, 1, 1, FeedMode(FULL, None, words)),))
        again = decode_record(Decoder(FeedHistory), encode_record(fed), "m")
        again.check_calls(1)
        assert again.runs[0].way.order == words
        assert decode_order(words, ["o"], schema)["o"].equals(column[0])


def test_an_order_of_other_words_is_a_corrupt_state() -> None:
    for type_, word in (
        (pa.int64(), "x"),
        (pa.decimal128(3, 1), "1234.5"),
        (pa.binary(), "zz"),
        (pa.decimal128(3), "x"),
    ):
        with raises(CorruptState):
            decode_order((word,), ["o"], pa.schema([pa.field("o", type_)]))
    with pytest.raises(CorruptState):
        decode_order((1, 2), ["o"], pa.schema([pa.field("o", pa.int64())]))


def test_orders_that_were_given_decide_again_unless_another_order_decides() -> None:
    store, spec = MemoryStore(), EPOCH
    log = [one(1, at=5), one(2, at=1), one(1, at=7)]
    with plan(spec).open(store) as engine:
        engine.step({"orders": log[0]}, 1)
        engine.replace("orders", log[1], 2, order=8)
        engine.step({"orders": log[2]}, 3)  # stale: the key was deleted by 8
    assert dd.verify(store, {"orders": log}).ok
    assert not dd.verify(store, {"orders": [*log[:2], one(1, at=9)]}).ok
    with raises(LogUnclear):
        dd.verify(store, {"orders": [log[0], dd.Full(log[1], order=3), log[2]]})
    by_city = plan(dd.Upsert(key="id", order_by="city", delete=dd.tombstone("gone")))
    with raises(LogUnclear):
        dd.migrate(store, MemoryStore(), by_city, [{"orders": part} for part in log])
    by_none, new = plan(ARRIVAL), MemoryStore()
    dd.migrate(store, new, by_none, [{"orders": part} for part in log])
    assert sorted(dd.read(new, "orders")["id"].to_pylist()) == [1, 2]
    marked = [log[0], dd.Full(log[1], order={"city": "Zug"}), log[2]]
    dd.migrate(store, MemoryStore(), by_city, [{"orders": part} for part in marked])


def test_a_manifest_that_lies_about_how_it_was_fed_is_found() -> None:
    for fed, said in (
        ({"nobody": FeedHistory((FeedRun(1, 1, 1, EVENTS),))}, "it records how ['nobody'] were fed"),
        ({"orders": FeedHistory((FeedRun(1, 3, 3, EVENTS),))}, "epoch 2 had a replace"),
    ):
        store = MemoryStore()
        replaced(store)
        assert fsck(store).ok
        lie_in(store, fed=fed)
        assert said in str(fsck(store))


def test_no_more_than_the_log_is_walked_however_many_calls_a_manifest_claims() -> None:
    store = MemoryStore()
    log = replaced(store)
    lie_in(store, fed={"orders": FeedHistory((FeedRun(1, 3, 2**62, FeedMode(FULL)),))})
    with pytest.raises(LogUnclear):
        dd.verify(store, {"orders": log})
    assert dd.verify(store, {"orders": [dd.Full(one(3))]}).ok


def test_inspect_says_how_inputs_were_fed() -> None:
    store = MemoryStore()
    replaced(store, EPOCH)
    found = dd.inspect(store)["inputs"]["orders"]["fed"]
    assert found["before"] is None and [run["way"] for run in found["runs"]] == ["events", "full", "full"]
    assert found["runs"][2] == {"first": 3, "last": 3, "calls": 1, "way": "full", "scope": BERN, "order": False}
    with plan(EPOCH).open(store.reopen()) as engine:
        engine.compact(forget=True)
    assert dd.inspect(store)["inputs"]["orders"]["fed"]["before"] == {
        "until": 3,
        "events": 1,
        "full": 2,
        "restated": 0,
    }


def test_a_call_that_is_told_again_is_not_counted_again() -> None:
    store = MemoryStore()
    log = replaced(store)
    with plan(ARRIVAL).open(store.reopen()) as engine:
        engine.replace("orders", log[2], 3, BERN)
        engine.replace("orders", log[1], 2, epoch=2)
        assert engine.dataflow.fed["orders"].call_count == 3
        engine.step({}, 4)
        assert engine.dataflow.fed["orders"].call_count == 3 and engine.epoch == 4
        assert [run.calls for run in engine.dataflow.fed["orders"].runs] == [1, 1, 1]

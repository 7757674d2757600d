"""Test that the index visits few slots, for steps of any size and keys in any order.

The tests count slots, not seconds. Each thread's keys are a range of identities. Growing the table for one range at a
time once made a step of a million rows ten times slower on two threads than on one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from probes import CHANCE, SLOTS, check, counted

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.columns.threads import Threads
from ddflow.trace import batch, checkpoint
from ddflow.trace.index import Index, IndexWrite

SECRET = Secret(11, 17)
SPAN = 256
"""Keys that are worth a thread of their own here."""
NONE = np.empty(0, np.uint64)
TOP = 2**64 - 1


def numbers(order: str, first: int, count: int) -> Any:
    """Keys of a step, as feeds have them."""
    at = np.arange(first, first + count, dtype=np.int64)
    shuffled = np.random.default_rng(count).permutation(at)
    return {
        "ascending": at,
        "descending": at[::-1],
        "shuffled": shuffled,
        "clustered": (at // 64 << 40) + at % 64,
        "strided": at << 32,
        "one in ten": np.repeat(at[: count // 10 + 1], 10)[:count],
    }[order]


def rows(given: tuple[str, int, int], texts: bool, gone: bool) -> pa.Table:
    keys = pa.array(numbers(*given))
    v = pa.array(np.arange(len(keys)) % 7, mask=np.full(len(keys), gone))
    return pa.table({"k": keys.cast(pa.string()) if texts else keys, "v": v})


def plan(texts: bool, kind: str) -> dd.Flow:
    flow = dd.Flow()
    schema = {"k": pa.string() if texts else pa.int64(), "v": pa.int64()}
    input = flow.upserts("a", schema, dd.Upsert(key="k", delete="v is null"))
    flow.output("out", {"rows": input, "count": input.count(["k"]), "upserts": input.to_upserts("k")}[kind])
    return flow


steps = st.tuples(
    st.sampled_from(["ascending", "descending", "shuffled", "clustered", "strided", "one in ten"]),
    st.sampled_from([0, 1000, 20_000]),
    st.sampled_from([1, 300, 3000, 12_000]),
)


@effort(30)
@given(
    st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=4),
    st.integers(2, 4),
    st.booleans(),
    st.sampled_from(["rows", "count", "upserts"]),
)
def test_steps_of_any_size_look_a_few_slots_far_and_any_number_of_threads_gives_the_same_rows(
    taken: list[tuple[tuple[str, int, int], bool]], threads: int, texts: bool, kind: str
) -> None:
    with pytest.MonkeyPatch.context() as patch, counted() as calls:
        patch.setattr(Threads.cut_spans, "__defaults__", (SPAN,))
        with (
            plan(texts, kind).open(secret=SECRET) as one,
            plan(texts, kind).open(secret=SECRET, threads=threads) as some,
        ):
            for time, (step, gone) in enumerate([(("shuffled", 0, 9000), False), *taken]):
                given = {"a": rows(step, texts, gone)}
                assert some.step(given, time=time)["out"].equals(one.step(given, time=time)["out"])
                assert some.read("a").equals(one.read("a"))
    check(calls)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("texts", [False, True])
def test_a_first_load_makes_room_once(threads: int, texts: bool) -> None:
    with counted() as calls, plan(texts, "rows").open(secret=SECRET, threads=threads) as engine:
        engine.step({"a": rows(("ascending", 0, 60_000), texts, False)}, time=0)
        assert len(engine.dataflow.graph.inputs["a"].output_arrangement.spine.parts) == threads
    check(calls)
    assert [call.keys for call in calls if call.what == "rebuild"] == [0]


@pytest.mark.parametrize("retain", [0, 9])
def test_a_state_is_opened_again_by_a_few_slots_a_key_also_where_many_keys_are_gone(
    tmp_path: Path, retain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (checkpoint, batch):
        monkeypatch.setattr(module, "LASTS", 1000)
    flow = dd.Flow()
    input = flow.upserts(
        "a", {"k": pa.int64(), "v": pa.int64(), "t": pa.int64()}, dd.Upsert(key="k", time="t", delete="v is null")
    )
    flow.output("out", input)
    with flow.open(tmp_path / "s", retain=retain) as engine:
        for time, (count, gone) in enumerate([(60_000, False), (22_000, True)]):
            engine.push({"a": rows(("ascending", 0, count), False, gone).append_column("t", pa.array([time] * count))})
            engine.advance_to(time + 1)
        assert engine.read("a").num_rows == 38_000
        arranged = engine.dataflow.graph.inputs["a"].output_arrangement
        assert len(arranged.spine.runs) == 2 and not arranged.index.keeps
    with counted() as calls, flow.open(tmp_path / "s", retain=retain) as engine:
        assert engine.read("a").num_rows == 38_000
    check(calls)
    assert sum(call.keys for call in calls if call.what == "write") == 82_000


def put(index: Index, high: Any, slot: int) -> None:
    n = high.size
    index.reserve_entries(n)
    columns = high, NONE, high, np.ones(n, np.uint8), np.empty((n, 0), np.int64)
    index.write(IndexWrite(np.full(n, -1), index.built, np.arange(n), *columns, slot))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_table_of_which_a_part_was_let_go_has_room_for_a_large_step(share: float) -> None:
    random, n, last = np.random.default_rng(5), 60_000, int(TOP * share)
    index = Index(wide=False, words=0)
    put(index, np.sort(random.integers(0, TOP, n, np.uint64)), 1)
    old = np.array([0, 1, 0, 0], np.uint8)
    index.remove_entries(0, last, old)
    more = n - len(index)
    with counted() as calls:
        put(index, np.sort(random.integers(0, TOP, more, np.uint64)), 2)
    assert len(index) == n
    assert sum(call.slots for call in calls) <= 2 * SLOTS * more + CHANCE
    # The rest goes, and with it the need for more slots than there are entries for.
    index.remove_entries(last + 1, TOP, old)
    size = index.nbytes
    put(index, np.sort(random.integers(0, TOP, n // 4, np.uint64)), 3)
    assert index.nbytes == size
    index._check_invariants()

"""Test receipts: written receipts read back unchanged, and malicious receipts raise a named error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from messages import raises
from msgspec import to_builtins
from msgspec.structs import replace
from test_manifest import blobs, by_input, counts, digests, names, times

from ddflow.errors import CorruptState
from ddflow.partitions.messages import MessageSummary
from ddflow.partitions.receipt import STAGES, Receipt, gather_receipts, max_by_name, sum_digests
from ddflow.storage.manifest import PARTITIONS, Output
from ddflow.storage.protocol import Blob

NONCE = "00ff00ff00ff00ff"


def blob(number: int, ending: str = "arrow", nonce: str = NONCE) -> Blob:
    """A file by its number."""
    return Blob(f"{nonce}-{number}.{ending}", number, bytes([number]) * 16)


def typical() -> Receipt:
    """A receipt with something in every field."""
    return Receipt(
        stage=1,
        number=7,
        started_from="0a" * 16,
        nonce=NONCE,
        inventory=blob(1, "json"),
        outputs={"größe": Output((blob(2),), 3)},
        rows={"a": 4},
        digests={"a": "0b" * 16},
        counts={"noop": 1},
        greatest={"a": -5},
        horizons={"a": 9},
        frontier=42,
        last=41,
        since=40,
        added=(blob(3), blob(4)),
        gone=("11" * 8 + "-9.arrow",),
        sent="0c" * 16,
        figures={"step": 1200},
        said={"orders": MessageSummary("shop.orders", ("id",), ("id", "n"), ("city",), {"shop.people": 2})},
    )


def own(nonce: str, each: Blob) -> Blob:
    """The same file, as if another writer had put it."""
    return each._replace(name=nonce + each.name[16:])


nonces = digests.map(lambda text: text[:16])
receipts = nonces.flatmap(
    lambda nonce: st.builds(
        Receipt,
        stage=st.integers(0, STAGES - 1),
        number=st.integers(0, PARTITIONS - 1),
        started_from=digests,
        nonce=st.just(nonce),
        inventory=blobs.map(lambda each: own(nonce, each)),
        outputs=st.dictionaries(names, st.builds(Output, blobs.map(lambda each: (own(nonce, each),)), counts)),
        rows=st.dictionaries(names, counts),
        digests=st.dictionaries(names, digests),
        counts=st.dictionaries(names, counts),
        greatest=by_input,
        horizons=by_input,
        frontier=times,
        last=times,
        since=times,
        added=st.lists(blobs.map(lambda each: own(nonce, each)), max_size=3).map(tuple),
        gone=st.lists(blobs.map(lambda each: each.name), max_size=3).map(tuple),
        sent=st.just("") | digests,
        figures=st.dictionaries(names, counts),
        said=st.dictionaries(names, st.builds(MessageSummary, tables=st.dictionaries(names, counts))),
    )
)


@given(receipts)
def test_what_is_written_is_read(receipt: Receipt) -> None:
    assert Receipt.from_json(receipt.to_json(), "a task") == receipt


def test_a_task_that_wrote_nothing_keeps_the_inventory_of_another() -> None:
    idle = replace(typical(), nonce="", outputs={}, added=(), gone=(), sent="", rows={})
    assert Receipt.from_json(idle.to_json(), "a task") == idle


def refused(change: dict[str, Any]) -> str:
    """The error that a field of another value makes."""
    data = json.dumps(json.loads(typical().to_json()) | to_builtins(change)).encode()
    with raises(CorruptState) as caught:
        Receipt.from_json(data, "the receipt of a task")
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stage", -1),
        ("stage", STAGES),
        ("stage", True),
        ("number", PARTITIONS),
        ("number", 1.0),
        ("number", None),
        ("started_from", "0a" * 15),
        ("started_from", "ZZ" * 16),
        ("started_from", ""),
        ("nonce", NONCE[1:]),
        ("nonce", "../../../../etc/"),
        ("inventory", None),
        ("inventory", ["/etc/passwd", 1, "00" * 16]),
        ("inventory", [NONCE + "-1.json", -1, ""]),
        ("inventory", blob(1, "json", "11" * 8)),
        ("outputs", []),
        ("outputs", {"a": {"blobs": [], "rows": 1}}),
        ("outputs", {"a": {"blobs": [blob(1, nonce="11" * 8)], "rows": 1}}),
        ("outputs", {"a": {"blobs": [blob(2)], "rows": -1}}),
        ("outputs", {"a": None}),
        ("rows", {"a": -1}),
        ("rows", None),
        ("digests", {"a": "0b" * 17}),
        ("digests", {"a": 5}),
        ("counts", {"a": 0.5}),
        ("greatest", {"a": 2**63}),
        ("horizons", {"a": None}),
        ("frontier", None),
        ("last", 2**63),
        ("since", "1"),
        ("added", [blob(3, nonce="11" * 8)]),
        ("added", None),
        ("gone", ["../x"]),
        ("gone", [4]),
        ("gone", "x"),
        ("sent", "0c"),
        ("sent", None),
        ("figures", {"x": -1}),
        ("said", {"orders": {"table": 1, "had": [], "names": []}}),
        ("said", {"orders": {"table": None, "had": [], "names": [], "more": 1}}),
        ("more", 1),
    ],
)
def test_a_field_that_is_none_of_ours_is_an_error(field: str, value: Any) -> None:
    refused({field: value})


def test_bytes_that_are_no_receipt() -> None:
    for data in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, typical().to_json()[:-1]):
        with pytest.raises(CorruptState):
            Receipt.from_json(data, "a task")
    body = json.loads(typical().to_json())
    for name in body:
        with pytest.raises(CorruptState):
            Receipt.from_json(json.dumps({k: v for k, v in body.items() if k != name}).encode(), "a task")


@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 5))
def test_what_receipts_add_up_to_does_not_depend_on_their_order_or_number(chance: Any, stages: int, parts: int) -> None:
    given = []
    for stage in range(stages):
        for number in range(parts):
            first = stage == 0
            given.append(
                replace(
                    typical(),
                    stage=stage,
                    number=number,
                    started_from="0a" * 16,
                    outputs={"o": Output((blob(stage * 9 + number),), number)},
                    rows={"a": number} if first else {},
                    digests={"a": f"{number:032x}"} if first else {},
                    greatest={"a": number} if first else {},
                    horizons={},
                    last=number,
                    since=number,
                )
            )
    taken, whole = gather_receipts(given, "0a" * 16, stages, parts)
    mixed = [*given, *(replace(each, figures={}) for each in chance.sample(given, chance.randrange(len(given) + 1)))]
    firsts = {(each.stage, each.number): each for each in reversed(mixed)}
    assert gather_receipts(list(firsts.values()), "0a" * 16, stages, parts) == gather_receipts(
        mixed, "0a" * 16, stages, parts
    )
    chance.shuffle(given)
    assert gather_receipts(given, "0a" * 16, stages, parts) == (taken, whole)
    assert whole.rows == {"a": sum(range(parts))} and whole.last == whole.since == parts - 1
    assert whole.greatest == {"a": parts - 1} and whole.outputs["o"].rows == stages * sum(range(parts))
    assert list(whole.outputs["o"].blobs) == [blob(stage * 9 + n) for stage in range(stages) for n in range(parts)]


def test_digests_are_summed_word_by_word() -> None:
    most, one = "ff" * 8 + "00" * 8, "01" + "00" * 7 + "02" + "00" * 7
    assert sum_digests([{"a": most}, {"a": one}, {"b": one}]) == {"a": "00" * 8 + "02" + "00" * 7, "b": one}
    assert max_by_name([{"a": -3}, {"a": -7, "b": 1}]) == {"a": -3, "b": 1}

"""Test manifests: written manifests read back, any deviation raises a named error, and nothing is lost silently."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import pytest
import xxhash
from hypothesis import given, strategies as st
from messages import raises
from msgspec import to_builtins
from msgspec.structs import replace

from ddflow.errors import CorruptState, StateRefused, StorageFailed
from ddflow.storage.backlog import BacklogFile
from ddflow.storage.epochs import Kind
from ddflow.storage.feeding import EVENTS, FULL, RESTATED, ROOM, FeedHistory, FeedMode, FeedRun
from ddflow.storage.fields import I64, INSTANTS
from ddflow.storage.manifest import (
    DEPTH,
    FORMAT,
    GREATEST,
    MANIFEST,
    PARTITIONS,
    AttachedSink,
    AttachedSource,
    Epoch,
    EpochCall,
    Feed,
    Manifest,
    Output,
    PastColumns,
    load_manifest,
    load_newest_manifest,
)
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob
from ddflow.time import CLOSED, NEVER

WHERE = "the state shop"


def blob(number: int, ending: str = "json") -> Blob:
    """A blob by its number."""
    return Blob(f"00ff00ff00ff00ff-{number}.{ending}", 10 * number, bytes([number]) * 16)


FED = FeedHistory(
    (
        FeedRun(2, 3, 7, EVENTS),
        FeedRun(3, 3, 1, FeedMode(FULL, "a = 'ß\"'", (-(2**63), None, "x"))),
        FeedRun(4, 5, 2, FeedMode(RESTATED)),
    ),
    until=2,
    events=3,
    full=1,
)


def part(first: int, last: int, level: int = 1) -> BacklogFile:
    """One of a backlog."""
    return BacklogFile(blob(8), first, last, level)


def typical(number: int = 7) -> Manifest:
    """A manifest with something in every field."""
    outputs = {"totals": Output((blob(3, "arrow"),), 12), "größe": Output((blob(4, "parquet"), blob(5, "parquet")), 1)}
    calls = (
        EpochCall("step", 41, "0a" * 16, 42, {"applied": 10, "noop": 2}, outputs, {"step": 1200, "write": 0}),
        EpochCall("advance_to", CLOSED, "00" * 16, CLOSED, {}, {}, {}),
    )
    plan = {"inputs": [{"name": "orders", "key": ["id"]}], "where": "a < 1.5 and b = 'ß\"'", "nothing": None}
    return Manifest(
        id="c0" * 16,
        number=number,
        epoch=5,
        nonce="00ff00ff00ff00ff",
        written=1_700_000_000_000,
        secret=(2**64 - 1, 1),
        plan=plan,
        fingerprint="ab" * 16,
        frontier=42,
        last=41,
        since=NEVER,
        inventories=(blob(1), blob(2)),
        backlog=(BacklogFile(blob(6), 1, 2, 2), BacklogFile(blob(7), 3, 3, 1)),
        receipts=(Epoch(4, (), 0, "0c" * 16, 7), Epoch(5, calls, None)),
        folder="out/ü",
        note="commit",
        previous="0d" * 16,
        partitions=2,
        horizons={"orders": 40},
        greatest={"orders": NEVER, "ä": CLOSED},
        feed=Feed("a query", 3),
        fed={"orders": FED, "ä": FeedHistory().add_call(5, EVENTS)},
        past=(PastColumns(4, {"orders": "AA=="}, {"totals": "AA==", "ä": ""}),),
        sources={
            "orders": AttachedSource(
                "files", "in/*.csv", {"files": {"a": [1, 2]}, "at": None}, {"orders": ("at",)}, 1_700_000_000_000
            )
        },
        sinks={"totals": AttachedSink("sqlite", "out.db", "upsert", 4, 3, "0b" * 16)},
        added={"orders": ("note",)},
        dropped={"gone": 3},
        retain=30,
    )


def encoded(body: Any, format_: int = FORMAT) -> bytes:
    """The bytes of a manifest with any body, as if it were ours."""
    data = body if isinstance(body, bytes) else json.dumps(to_builtins(body), separators=(",", ":")).encode()
    return f"ddflow manifest {format_} {len(data)} {xxhash.xxh3_128_hexdigest(data, format_)}\n".encode() + data


def body_of(manifest: Manifest) -> dict[str, Any]:
    """The JSON that a manifest is written as."""
    return json.loads(manifest.encode().split(b"\n", 1)[1])


def of_files(blobs: Any, rows: int = 1, figures: Any = None) -> dict[str, Any]:
    """An epoch whose one call has an output of these files."""
    call = {
        "kind": "push",
        "time": 0,
        "digest": "00" * 16,
        "frontier": 0,
        "counts": {},
        "outputs": {"x": {"blobs": blobs, "rows": rows}},
        "figures": {} if figures is None else figures,
    }
    return {"epoch": 1, "calls": [call], "batch": None}


def so_fed(*runs: Any, **fields: Any) -> dict[str, Any]:
    """How an input was fed, as a manifest has it."""
    return {"runs": list(runs), "until": 0, "events": 0, "full": 0, "restated": 0} | fields


def refusal(data: bytes, number: int = 7) -> CorruptState:
    """The error that reading raises; whatever it is about, it names the manifest, the place and a way back."""
    with pytest.raises(CorruptState) as caught:
        Manifest.decode(data, number, WHERE)
    assert str(caught.value).startswith(f"manifest {number} of {WHERE}") and "dd.rollback" in caught.value.fix
    return caught.value


times = st.integers(NEVER, CLOSED)
counts = st.integers(0, I64)
digests = st.binary(min_size=16, max_size=16).map(bytes.hex)
names = st.text(max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | names
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
blobs = st.builds(
    Blob,
    st.from_regex(r"[0-9a-f]{16}-[0-9]{1,12}\.(arrow|json|parquet)", fullmatch=True),
    counts,
    st.binary(min_size=16, max_size=16),
)
files = st.lists(blobs, min_size=1, max_size=3, unique_by=lambda each: each.name).map(tuple)
by_input = st.dictionaries(names, times, max_size=3)
calls = st.builds(
    EpochCall,
    st.sampled_from(get_args(Kind)),
    times,
    digests,
    times,
    st.dictionaries(names, counts, max_size=3),
    st.dictionaries(names, st.builds(Output, files, counts), max_size=2),
    st.dictionaries(names, counts, max_size=3),
)
ways = (
    st.just(EVENTS)
    | st.builds(
        FeedMode,
        st.just(FULL),
        st.none() | st.text(max_size=8),
        st.none() | st.lists(st.none() | names | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=2).map(tuple),
    )
    | st.just(FeedMode(RESTATED))
)


@st.composite
def feedings(draw: st.DrawFn, last: int) -> FeedHistory:
    """How an input was fed by some calls, up to an epoch; some of them may be forgotten."""
    fed, at = FeedHistory(), 1
    for way in draw(st.lists(ways, max_size=6)) if last else ():
        at = draw(st.integers(at, last))
        fed = fed.add_call(at, way)
    return fed.remove_runs_naming_values() if draw(st.booleans()) else fed


def pasts(last: int) -> st.SearchStrategy[Any]:
    """The columns of some epochs, up to the last one."""
    until = st.lists(st.integers(0, last), max_size=2, unique=True).map(sorted)
    columns = st.dictionaries(names, st.text(max_size=8), max_size=2)
    return until.flatmap(
        lambda given: st.tuples(*(st.builds(PastColumns, st.just(n), columns, columns) for n in given))
    )


def sinks(last: int) -> st.SearchStrategy[AttachedSink]:
    """A sink that has acknowledged epochs up to the last one."""
    upto = st.integers(0, last)
    kinds = st.text("abc", min_size=1, max_size=8)
    return st.builds(AttachedSink, kinds, st.just("out.db"), st.just("upsert"), upto, counts, st.just("") | digests)


def backlogs(before: int) -> st.SearchStrategy[tuple[BacklogFile, ...]]:
    """Parts of epochs up to the one before, without a gap."""
    cuts = st.lists(st.integers(1, max(before - 1, 1)), max_size=4, unique=True).map(lambda cut: [*sorted(cut), before])
    parts = cuts.flatmap(
        lambda given: st.tuples(
            *(st.builds(BacklogFile, blobs, st.just(a), st.just(b - 1), st.integers(1, 16)) for a, b in pairwise(given))
        )
    )
    return parts if before > 1 else st.just(())


moments = st.integers(*INSTANTS)
epochs = st.lists(counts, max_size=3, unique=True).map(sorted)
receipts = epochs.flatmap(
    lambda given: st.tuples(
        *(
            st.builds(
                Epoch,
                st.just(n),
                st.lists(calls, max_size=3).map(tuple),
                st.none() | counts,
                st.just("") | digests,
                st.none() | moments,
            )
            for n in given
        )
    )
)
receipts_and_epoch = receipts.flatmap(
    lambda given: st.tuples(st.just(given), st.integers(given[-1].epoch if given else 0, I64))
)
columns = st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2)
manifests = st.tuples(receipts_and_epoch, st.integers(1, 3), st.integers(0, 2)).flatmap(
    lambda given: st.builds(
        Manifest,
        id=digests,
        number=st.integers(0, GREATEST),
        epoch=st.just(given[0][1]),
        nonce=digests.map(lambda text: text[:16]),
        written=moments,
        secret=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
        plan=st.dictionaries(names, values, max_size=3),
        fingerprint=digests,
        frontier=times,
        last=times,
        since=times,
        inventories=st.lists(
            blobs, min_size=given[1] * given[2], max_size=given[1] * given[2], unique_by=lambda each: each.name
        ).map(tuple),
        backlog=backlogs(given[0][0][0].epoch if given[0][0] else 0),
        receipts=st.just(given[0][0]),
        folder=st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
        note=st.text(max_size=8),
        previous=st.just("") | digests,
        partitions=st.just(given[1]),
        horizons=by_input,
        greatest=by_input,
        feed=st.none() | st.builds(Feed, st.text(max_size=8), counts),
        fed=st.dictionaries(names, feedings(given[0][1]), max_size=2),
        past=pasts(given[0][1]),
        sources=st.dictionaries(
            names,
            st.builds(AttachedSource, st.text("abc", min_size=1, max_size=8), st.just("in/*.csv"), values, columns),
            max_size=2,
        ),
        sinks=st.dictionaries(names, sinks(given[0][1]), max_size=2),
        added=columns,
        dropped=st.dictionaries(names, counts, max_size=2),
        retain=counts,
    )
)


@given(manifests)
def test_what_is_written_is_read(manifest: Manifest) -> None:
    data = manifest.encode()
    assert Manifest.decode(data, manifest.number, WHERE) == manifest
    assert Manifest.decode(data, manifest.number, WHERE).encode() == data
    manifest._check_invariants()


def test_every_flipped_bit_is_an_error() -> None:
    data = typical().encode()
    for i in range(len(data)):
        for bit in range(8):
            refusal(data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :])


def test_every_cut_is_an_error_and_so_is_every_addition() -> None:
    data = typical().encode()
    for i in range(len(data)):
        refusal(data[:i])
        refusal(data[:i] + b" " + data[i:])


def test_a_manifest_is_read_by_its_own_number_only() -> None:
    assert refusal(typical(8).encode(), 7).found == "it says that it is manifest 8"


def test_another_format_is_told_from_damage() -> None:
    for other in (FORMAT - 1, FORMAT + 1):
        found = refusal(encoded({"format": other, "whatever": [1]}, other))
        assert f"it has format {other}, but this ddflow reads format {FORMAT}" in str(found)
        assert "another ddflow version wrote it: open it with that version" in found.fix
    data = typical().encode()
    damaged = refusal(data.replace(b"manifest 13", b"manifest 14", 1))
    assert FORMAT == 13 and "its header says" in damaged.found and "checksum" in damaged.found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("number", -1),
        ("number", GREATEST + 1),
        ("number", 7.0),
        ("number", True),
        ("epoch", 4),
        ("nonce", "0" * 15),
        ("nonce", "0" * 17),
        ("nonce", "G" * 16),
        ("written", None),
        ("secret", "0" * 31),
        ("secret", "-" + "0" * 31),
        ("plan", []),
        ("plan", None),
        ("fingerprint", "AB" * 16),
        ("frontier", CLOSED + 1),
        ("since", NEVER - 1),
        ("last", "7"),
        ("inventories", {}),
        ("inventories", [["x", 1, "00" * 16]]),
        ("receipts", [{"epoch": 1}]),
        ("inventories", [blob(1)] * 2),
        ("folder", 7),
        ("folder", "a\0b"),
        ("note", None),
        ("extra", 1),
        ("secret", [1]),
        ("secret", [1, 2**64]),
        ("secret", [-1, 2]),
        ("id", "0" * 31),
        ("id", None),
        ("receipts", [{"epoch": n, "calls": [], "batch": None} for n in (2, 1)]),
        ("receipts", [{"epoch": 1, "calls": [], "batch": None}] * 2),
        ("receipts", [{"epoch": 1, "calls": [], "batch": -1}]),
        ("receipts", [{"epoch": 1, "calls": []}]),
        ("receipts", [{"epoch": 1, "calls": [], "batch": 0, "more": 1}]),
        ("receipts", [of_files([])]),
        ("receipts", [of_files([blob(1)] * 2)]),
        ("receipts", [of_files(blob(1))]),
        ("receipts", [of_files([blob(3)], rows=-1)]),
        ("receipts", [of_files([["../x", 1, "00" * 16]])]),
        ("receipts", [of_files([blob(3)], figures={"step": -1})]),
        ("receipts", [of_files([blob(3)], figures=[])]),
        ("partitions", 0),
        ("partitions", 3),
        ("partitions", PARTITIONS * 2),
        ("partitions", 1.0),
        ("partitions", None),
        ("partitions", True),
        ("horizons", None),
        ("horizons", {"a": NEVER - 1}),
        ("horizons", {"a": None}),
        ("horizons", [["a", 1]]),
        ("greatest", {"a": CLOSED + 1}),
        ("greatest", {"a": 1.5}),
        ("feed", []),
        ("feed", "x"),
        ("feed", {}),
        ("feed", {"query": "x"}),
        ("feed", {"query": "x", "batch": -1}),
        ("feed", {"query": 1, "batch": 1}),
        ("feed", {"query": "x" * 201, "batch": 1}),
        ("feed", {"query": "x", "batch": 1, "more": 1}),
        ("sources", {"a": {"kind": "", "target": "b", "position": 1}}),
        ("sources", {"a": {"kind": "files", "target": "b"}}),
        ("sinks", {"a": {"kind": "c", "target": "b", "mode": "upsert", "epoch": 6, "written": 0, "digest": ""}}),
        ("sinks", {"a": {"kind": "c", "target": "b", "mode": "upsert", "epoch": 1, "written": 1, "digest": "x"}}),
        ("fed", None),
        ("fed", []),
        ("fed", {"a": None}),
        ("fed", {"a": {"runs": None}}),
        ("fed", {"a": so_fed(more=1)}),
        ("fed", {"a": so_fed(until=6, events=1)}),
        ("fed", {"a": so_fed(until=-1)}),
        ("fed", {"a": so_fed(events=1)}),
        ("fed", {"a": so_fed(until=1)}),
        ("fed", {"a": so_fed(until=1, full=-1)}),
        ("fed", {"a": so_fed(runs={})}),
        *(
            ("fed", {"a": so_fed(*runs)})
            for runs in (
                [None],
                [[]],
                [[1, 1, 1, []]],
                [[1, 1, 1, "events"]],
                [[1, 1, 1, ["events", None, None, None]]],
                [[0, 1, 2, ["events", None, None]]],
                [[2, 1, 2, ["events", None, None]]],
                [[1, 6, 2, ["events", None, None]]],
                [[1, 1, 0, ["events", None, None]]],
                [[1, 2, 1, ["events", None, None]]],
                [[1, 2, True, ["events", None, None]]],
                [[1, 1.0, 1, ["events", None, None]]],
                [[1, 1, 2**63, ["events", None, None]]],
                [[1, 1, 1, ["e", None, None]]],
                [[1, 1, 1, ["events", "a", None]]],
                [[1, 1, 1, ["restated", "a", None]]],
                [[1, 1, 1, ["full", 7, None]]],
                [[1, 1, 1, ["events", None, [1]]]],
                [[1, 1, 1, ["full", None, []]]],
                [[1, 1, 1, ["full", None, [1.5]]]],
                [[1, 1, 1, ["full", None, [True]]]],
                [[1, 1, 1, ["full", None, [2**63]]]],
                [[1, 1, 1, ["full", None, "x"]]],
                [[1, 1, 1, ["full", "x" * ROOM, None]]],
                [[1, 1, 1, [["full"], None, None]]],
                [[1, 2, 2, ["events", None, None]], [1, 3, 2, ["full", None, None]]],
                [[1, 2, 2, ["events", None, None]], [2, 3, 2, ["events", None, None]]],
            )
        ),
        ("fed", {"a": so_fed([1, 1, 1, ["events", None, None]], until=2, full=1)}),
    ],
)
def test_a_field_that_is_none_of_ours_is_an_error(path: str, value: Any) -> None:
    body = body_of(typical())
    assert Manifest.decode(encoded(body), 7, WHERE) == typical()
    Manifest.decode(encoded(body | {"fed": {"a": so_fed([1, 1, 1, ["full", "a", [1, "x", None]]])}}), 7, WHERE)
    refusal(encoded(body | {path: value}))


def test_a_field_that_is_missing_is_an_error() -> None:
    body = body_of(typical())
    for name in body:
        refusal(encoded({other: value for other, value in body.items() if other != name}))


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "[" * DEPTH + "]" * DEPTH,
        "[" * 10_000 + "]" * 10_000,
        '{"a":' * 10_000 + "1" + "}" * 10_000,
        "[" * 1_000_000 + "]" * 1_000_000,
        "9" * 5000,
        "[" * 100_000,
        '"\xe4"',
        '"\\ud800"',
        '"\\udc00x"',
    ],
    ids=lambda value: value[:12],
)
def test_what_is_not_quite_json_is_an_error(value: str) -> None:
    text = json.dumps(body_of(replace(typical(), plan={"x": "here"})), separators=(",", ":"))
    assert Manifest.decode(encoded(text.replace('"here"', "1e99").encode("latin-1")), 7, WHERE).plan == {"x": 1e99}
    data = encoded(text.replace('"here"', value).encode("latin-1"))
    refusal(data)
    from_a_deep_stack(lambda: refusal(data))


def from_a_deep_stack(call: Callable[[], Any]) -> Any:
    """What a call returns that is made with few frames left."""
    left = sys.getrecursionlimit() - len(inspect.stack(0)) - 120

    def deeper(stages: int) -> Any:
        return deeper(stages - 1) if stages else call()

    return deeper(left)


def test_how_deep_a_plan_may_be_does_not_depend_on_who_reads_it() -> None:
    plan: Any = 1
    for _ in range(DEPTH):
        plan = {"in": plan}
    deepest = replace(typical(), plan=plan)
    data = deepest.encode()
    assert from_a_deep_stack(lambda: Manifest.decode(data, 7, WHERE)) == deepest


@pytest.mark.parametrize("field", ["since", "receipts", "inventories", "greatest", "feed", "fed", "extra"])
@pytest.mark.parametrize("depth", [10, 10_000, 1_000_000])
def test_depth_that_no_field_has_is_an_error_at_once(field: str, depth: int) -> None:
    text = json.dumps(body_of(typical()) | {field: "here"}, separators=(",", ":"))
    for deep in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        data = encoded(text.replace('"here"', deep).encode())
        refusal(data)
        from_a_deep_stack(lambda data=data: refusal(data))  # type: ignore[misc]


def test_of_two_fields_of_one_name_the_last_counts() -> None:
    text = json.dumps(body_of(typical()), separators=(",", ":"))
    assert Manifest.decode(encoded(('{"note":"first",' + text[1:]).encode()), 7, WHERE) == typical()
    refusal(encoded(('{"note":7,' + text[1:]).encode()))


def test_a_plan_that_could_not_be_read_is_not_written() -> None:
    plan: Any = 1
    for _ in range(DEPTH):
        plan = {"in": plan}
    replace(typical(), plan=plan)._check_invariants()
    endless: Any = 1
    for _ in range(10_000):
        endless = {"in": endless}
    for bad in ({"in": plan}, endless, {"x": float("nan")}, {"x": float("inf")}, {"x": "\ud800"}):
        with raises(StateRefused):
            replace(typical(), plan=bad).encode()


class Stage(MemoryStore):
    """A state in memory with manifests by number; ``meanwhile`` is done once, just after the numbers were told."""

    def __init__(self, *given: int, mark: int = -1) -> None:
        super().__init__()
        self.where = WHERE
        self.meanwhile: Callable[[], None] | None = None
        for number in given:
            self.publish(number, typical(number).encode())
        self.mark_published(mark)

    def list_manifests(self, after: int = -1) -> list[int]:
        """Ascending."""
        out, self.meanwhile, then = super().list_manifests(after), None, self.meanwhile
        if then is not None:
            then()
        return out


def test_the_newest_is_the_greatest_number() -> None:
    stage = Stage(3, 7, 11)
    assert (
        load_newest_manifest(stage) == typical(11)
        and stage.list_manifests() == [3, 7, 11]
        and load_manifest(stage, 7) == typical(7)
    )
    stage.mark_published(11)
    assert load_newest_manifest(stage) == typical(11)
    assert load_newest_manifest(Stage(3, 7, 11, mark=7)) == typical(11)  # a mark need not be durable


def test_a_place_where_nothing_was_published_has_none() -> None:
    assert load_newest_manifest(Stage()) is None


@pytest.mark.parametrize("stage", [Stage(mark=0), Stage(3, 7, mark=8), Stage(0, mark=1)])
def test_a_newest_that_was_lost_is_an_error_and_no_step_back(stage: Stage) -> None:
    with raises(CorruptState):
        load_newest_manifest(stage)


def test_a_newest_that_is_damaged_is_an_error_and_no_step_back() -> None:
    stage = Stage(6, 7)
    stage.shared.manifests[7] = stage.read_manifest(7)[:-1]
    with raises(CorruptState):
        load_newest_manifest(stage)
    assert load_manifest(stage, 6) == typical(6)


def test_a_writer_that_goes_on_meanwhile_is_no_loss() -> None:
    stage = Stage(6, 7, mark=7)

    def commit() -> None:
        stage.publish(8, typical(8).encode())
        stage.mark_published(8)

    stage.meanwhile = commit
    assert load_newest_manifest(stage) == typical(7)

    def commit_and_expire() -> None:
        stage.publish(9, typical(9).encode())
        stage.mark_published(9)
        for number in (6, 7, 8):
            stage.delete_manifest(number)

    stage.meanwhile = commit_and_expire
    assert load_newest_manifest(stage) == typical(9)


def test_what_a_store_raises_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> bytes:
        raise StorageFailed("read", "the disk is gone", "mend it")

    stage = Stage(7)
    monkeypatch.setattr(stage, "read_manifest", fail)
    with pytest.raises(StorageFailed):
        load_newest_manifest(stage)


def test_a_manifest_names_the_files_of_its_outputs() -> None:
    assert list(typical().output_files()) == [blob(3, "arrow"), blob(4, "parquet"), blob(5, "parquet")]


def test_inventories_are_whole_stages_of_partitions() -> None:
    six = tuple(blob(n) for n in range(6))
    for partitions, count in [(1, 0), (1, 2), (3, 6), (6, 6), (3, 0)]:
        replace(typical(), inventories=six[:count], partitions=partitions)._check_invariants()
    for partitions, count in [(2, 1), (4, 6), (5, 6)]:
        written = body_of(typical()) | {"inventories": list(six[:count]), "partitions": partitions}
        text = str(refusal(encoded(written)))
        assert f"it has {count} inventories, which is not a multiple of {partitions} partitions" in text


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("number", GREATEST + 1, "<= 9999999999999998 - at `$.number`"),
        ("written", INSTANTS[1] + 1, "<= 253402300799999 - at `$.written`"),
        ("written", INSTANTS[0] - 1, ">= -62135596800000 - at `$.written`"),
        ("feed", Feed("q" * 201, 0), "length <= 200 - at `$.feed.query`"),
        ("folder", "x" * 65_537, "length <= 65536 - at `$.folder`"),
        ("folder", "out/\udce4", "surrogates not allowed"),
        ("epoch", 4, "receipts do not ascend to 4"),
        ("backlog", (part(1, 3), part(1, 3)), "epochs 1 to 3 of its backlog do not follow"),
        ("backlog", (part(4, 3),), "epochs 4 to 3 of its backlog do not follow"),
        ("backlog", (part(1, 2),), "backlog ends with epoch 2, but its first receipt is of 4"),
        ("backlog", (part(1, 3, 17),), "<= 16 - at `$.backlog[0].level`"),
        ("frontier", CLOSED + 1, "<= 9223372036854775807 - at `$.frontier`"),
        ("inventories", (blob(1), blob(1)), "are the same"),
        ("greatest", {"a": NEVER - 1}, ">= -9223372036854775808 - at `$.greatest[...]`"),
        ("note", "x" * (MANIFEST + 1), "length <= 16777216 - at `$.note`"),
        ("secret", (2**64, 0), "its secret is not two words of 64 bits"),
        ("fed", {"a": FeedHistory(until=1)}, "it has forgotten 0 calls up to epoch 1"),
        ("plan", {"a": ["x" * (1 << 24)] * 17}, "bytes, but the limit is 268,435,456"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(field: str, value: Any, found: str) -> None:
    with pytest.raises(StateRefused) as caught:
        replace(typical(), **{field: value}).encode()
    assert caught.value.asked.startswith("write manifest") and found in caught.value.found
    assert "nothing was committed" in caught.value.fix

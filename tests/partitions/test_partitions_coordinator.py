"""Test the coordinator, which makes epochs of receipts; tasks are simulated (``Tasks``) or real (``Hands``)."""

from __future__ import annotations

import random
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tight
from chance import mid_test
from messages import raises
from msgspec.structs import replace
from parts_by_hand import Hands

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.connectors.parquet.sink import OutputFolder
from ddflow.dataflow.batcher import PendingRunRecord
from ddflow.engine.checkpoint import InputRecord, Inventory
from ddflow.engine.garbage import collect_file_names
from ddflow.errors import (
    CorruptState,
    EpochSkipped,
    FeedChanged,
    Fenced,
    MissingReceipts,
    OutcomeUnknown,
    PlanChanged,
    ReceiptsDisagree,
    ReplayMismatch,
    SpecError,
    StateRefused,
    WrongMode,
)
from ddflow.partitions import commit as module
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.epoch_start import EpochStart
from ddflow.partitions.receipt import EpochResult, Receipt
from ddflow.storage.fields import encode_record
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.inventory_text import is_state_file, read_inventory_text
from ddflow.storage.manifest import Feed, Output, load_manifest, load_newest_manifest
from ddflow.storage.manifest_log import hash_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob
from ddflow.time import CLOSED, NEVER
from ddflow.trace.records import ArrangementRecord

ROWS = ({"orders": 3}, {"orders": "ab" * 16})


def flow_of(columns: dict[str, pa.DataType] | None = None, counted: bool = False, **spec: Any) -> dd.Flow:
    """One input, one output, and a count that is on a stage of its own."""
    flow = dd.Flow()
    columns = {"id": pa.int64(), "city": pa.string(), "at": pa.int64()} | (columns or {})
    orders = flow.upserts("orders", columns, dd.Upsert(key="id", **spec))
    flow.output("orders", orders)
    if counted:
        flow.output("by_city", orders.count("city"))
    return flow


def naming(batch: Blob) -> Inventory:
    """An inventory that names one file."""
    waiting = PendingRunRecord(batch, 1, 0, advanced=False, final=False, columns=[], compressed=False)
    nothing = ArrangementRecord(NEVER, NEVER, NEVER, 0, 0, 0, [], [])
    return Inventory({"orders": InputRecord(1, NEVER, nothing, [waiting])}, {}, {})


class Tasks:
    """Plays the tasks of a start: each writes an inventory and an output file, and says what it is told to say."""

    def __init__(self, coordinator: EpochDriver, start: EpochStart) -> None:
        self.coordinator, self.start = coordinator, start
        store = coordinator.log.manifest_log.store
        self.store = store.reopen() if isinstance(store, MemoryStore) else LocalStore(store.where)

    def put(self, data: bytes, ending: str = "json") -> Blob:
        return self.store.put(ending, lambda sink: sink.write(data))

    def receipt(self, stage: int, number: int, rows: int = 0, **fields: Any) -> Receipt:
        """A receipt of new files; ``rows`` of them came and left."""
        start = self.start
        batch = self.put(b"a batch", "arrow")
        outputs = {"orders": Output((self.put(b"rows", "arrow"),), rows)} if rows and stage == 0 else {}
        came = ({"orders": rows}, {"orders": f"{rows:02x}" * 16}) if rows and stage == 0 else ({}, {})
        held = self.coordinator.flow.holds_back
        receipt = Receipt(
            stage=stage,
            number=number,
            started_from=start.version.digest,
            nonce=self.store.nonce,
            inventory=self.put(encode_record(naming(batch))),
            outputs=outputs,
            rows=came[0],
            digests=came[1],
            counts={"applied": rows} if rows and stage == 0 else {},
            greatest={"orders": 10 * start.epoch + number} if held and stage == 0 else {},
            horizons={},
            frontier=start.to if held else start.time + 1,
            last=start.last if held else start.time,
            since=start.since,
            added=(batch,),
            gone=(),
            sent="",
            figures={"step": 7, "memory": number},
            said={},
        )
        return replace(receipt, **fields)

    def all(self, rows: int = 3) -> list[Receipt]:
        """Of all tasks; those of the first partition have rows."""
        cut = self.coordinator.cut
        return [
            self.receipt(stage, number, rows if number == 0 else 0)
            for stage in range(cut.stages)
            for number in range(self.start.partitions)
        ]


def epoch(coordinator: EpochDriver, rows: int = 3, feed: Feed | None = None, **options: Any) -> EpochResult:
    """One epoch, from begin to finish."""
    start = coordinator.begin(feed=feed, **options)
    return coordinator.finish(start, Tasks(coordinator, start).all(rows), feed=feed)


def opened(store: MemoryStore | Path | None = None, flow: dd.Flow | None = None, **options: Any) -> EpochDriver:
    """A coordinator of two partitions."""
    store = store.reopen() if isinstance(store, MemoryStore) else store or MemoryStore()
    return EpochDriver.open(
        flow or flow_of(), store, DriverOptions(**{"partitions": 2, "secret": Secret(1, 2), **options})
    )


def test_an_epoch_is_one_manifest_of_all_receipts() -> None:
    store = MemoryStore()
    coordinator = opened(store, flow_of(counted=True), keep=2)
    assert (coordinator.cut.stages, coordinator.partitions, coordinator.epoch) == (2, 2, 0)
    start = coordinator.begin()
    assert start.inventories == () and (start.epoch, start.time, start.frontier) == (1, 1, NEVER)
    assert start.version.digest == hash_manifest(store.read_manifest(start.version.number)) and start.secret == (1, 2)
    receipts = Tasks(coordinator, start).all()
    done = coordinator.finish(start, receipts[::-1])
    manifest = load_newest_manifest(store)
    assert manifest is not None and manifest == coordinator.manifest
    assert manifest.inventories == tuple(each.inventory for each in receipts) and manifest.partitions == 2
    assert (manifest.epoch, manifest.frontier, manifest.last, manifest.folder) == (1, 2, 1, None)
    [call] = manifest.receipts[0].calls
    assert (call.kind, call.time, call.counts) == ("step", 1, {"applied": 3}) and call.outputs == done.outputs
    assert done.outputs["orders"] == receipts[0].outputs["orders"] and done.rows == {"orders": 3}
    assert done.figures["step"] == 28 and done.figures["memory"] == 1 and done.figures["tasks"] == 4
    assert not done.replayed
    epoch(coordinator)
    epoch(coordinator)
    start = coordinator.begin()
    assert start.inventories == (coordinator.manifest.inventories[:2], coordinator.manifest.inventories[2:])
    assert [each.epoch for each in coordinator.manifest.receipts] == [2, 3]
    # Whoever opens it next goes on, with as many partitions, but does not know what led there.
    again = opened(store, flow_of(counted=True), partitions=None).begin()
    assert again._replace(version=start.version) == start._replace(past=()) and start.list_past_inventories(0, 0) != ()
    with raises(CorruptState):
        opened(store, flow_of(counted=True)).live.load(store, manifest.inventories, 1, 2)


def test_the_digest_of_a_call_does_not_depend_on_partitions() -> None:
    found = set()
    for partitions in (1, 2, 5):
        coordinator = opened(partitions=partitions)
        start = coordinator.begin()
        tasks = Tasks(coordinator, start)
        given = [tasks.receipt(0, number) for number in range(partitions)]
        for i, row in enumerate((11, 2**63, 2**64 - 1)):
            at = i % partitions
            whole = {"orders": int.from_bytes(bytes.fromhex(given[at].digests.get("orders", "00" * 16))[:8], "little")}
            text = ((whole["orders"] + row) % 2**64).to_bytes(8, "little").hex() + "00" * 8
            given[at] = replace(
                given[at], rows={"orders": given[at].rows.get("orders", 0) + 1}, digests={"orders": text}
            )
        found.add(coordinator.finish(start, given) and coordinator.manifest.receipts[0].calls[0].digest)
    assert len(found) == 1


def test_a_receipt_that_is_missing_is_named_and_nothing_is_committed() -> None:
    coordinator = opened(flow=flow_of(counted=True), partitions=14)
    start = coordinator.begin()
    receipts = Tasks(coordinator, start).all()
    with raises(MissingReceipts):
        coordinator.finish(start, [each for each in receipts if (each.stage, each.number) != (1, 3)])
    with raises(MissingReceipts):
        coordinator.finish(start, receipts[:1])
    assert coordinator.epoch == 0 and coordinator.finish(start, receipts).epoch == 1


def test_of_two_attempts_the_first_is_taken_and_they_agree() -> None:
    coordinator = opened()
    start = coordinator.begin()
    first, second = Tasks(coordinator, start).all(), Tasks(coordinator, start).all()
    slow = [replace(each, figures={"step": 10**9}) for each in second]
    for field, value in [
        ("rows", {"orders": 2}),
        ("digests", {"orders": "00" * 16}),
        ("counts", {"stale": 3}),
        ("sent", "11" * 16),
        ("last", 77),
        ("outputs", {}),
    ]:
        other = replace(second[0], **{field: value})
        with raises(ReceiptsDisagree):
            coordinator.finish(start, [*first, other])
    done = coordinator.finish(start, [*first, *slow])
    assert done.figures["step"] == 14
    assert coordinator.manifest.inventories == tuple(each.inventory for each in first)


def test_receipts_of_others_are_refused() -> None:
    coordinator = opened()
    start = coordinator.begin()
    first, second = Tasks(coordinator, start).all()
    for receipt in [
        replace(second, started_from="00" * 16),
        replace(second, stage=1),
        replace(second, number=2),
    ]:
        with raises(SpecError):
            coordinator.finish(start, [first, receipt])
    with raises(ReceiptsDisagree):
        coordinator.finish(start, [first, replace(second, frontier=9)])
    for wrong in (
        {"rows": {"others": 1}},
        {"rows": {"orders": 1}, "digests": {}},
        {"horizons": {"x": 1}},
        {"outputs": {"by_city": first.outputs["orders"]}},
        {"outputs": {"orders": Output((Blob("00ff00ff00ff00ff-1.parquet", 1, bytes(16)),), 1)}},
    ):
        with raises(CorruptState):
            coordinator.finish(start, [first, replace(second, **wrong)])
    with raises(SpecError):
        coordinator.finish(start._replace(time=8), [first, second])
    coordinator.finish(start, [first, second])
    with raises(SpecError):
        coordinator.finish(start, [first, second])


def test_no_part_gives_up_what_it_never_had() -> None:
    store = MemoryStore()
    coordinator = opened(store)
    start = coordinator.begin()
    first, second = Tasks(coordinator, start).all()
    coordinator.finish(start, [first, second])
    start = coordinator.begin()
    tasks = Tasks(coordinator, start)
    own = tasks.receipt(0, 0, gone=(first.added[0].name,))
    with raises(CorruptState):
        coordinator.finish(start, [own, tasks.receipt(0, 1, gone=(first.added[0].name,))])
    coordinator.finish(start, [own, tasks.receipt(0, 1)])
    assert coordinator.log.manifest_log.names == collect_file_names(store, coordinator.manifest) | {
        second.added[0].name
    }


@pytest.mark.parametrize("place", ["memory", "local", "parquet"])
def test_files_are_looked_for_before_they_are_named(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "out" if place == "parquet" else None
    state = MemoryStore() if place == "memory" else tmp_path / "state"
    coordinator = opened(state, outputs=folder)
    start = coordinator.begin()
    first, second = Tasks(coordinator, start).all()
    if folder is not None:
        assert start.folder == str(folder)
        written = OutputFolder(folder, first.nonce)
        blob = written.write_fragment("orders", pa.table({"id": [1, 2, 3]}))
        first = replace(first, outputs={"orders": Output((blob,), 3)})
        lost, cut_off = Blob(blob.name.replace("-", "-9"), 1, bytes(16)), blob._replace(length=blob.length + 1)
        bad = [replace(first, outputs={"orders": Output((each,), 3)}) for each in (lost, cut_off)]
    else:
        lost, cut_off = Blob("00ff00ff00ff00ff-1.arrow", 1, bytes(16)), first.added[0]._replace(length=1)
        bad = [replace(first, added=(each,)) for each in (lost, cut_off)]
        bad += [replace(first, inventory=Blob("00ff00ff00ff00ff-1.json", 1, bytes(16)))]
        bad += [replace(first, outputs={"orders": Output((lost,), 3)})]
    for each in bad:
        with raises(StateRefused):
            coordinator.finish(start, [each, second])
    assert coordinator.epoch == 0
    coordinator.finish(start, [first, second])
    if folder is not None:
        assert [path.name for path in folder.glob("*/*.parquet")] == [f"000000000001-{blob.name}"]
        # What a crash left hidden is shown by whoever opens the state next.
        shown = next(folder.glob("*/*.parquet"))
        shown.rename(shown.with_name(f".{blob.name}.hidden"))
        opened(state, outputs=folder)
        assert shown.exists()


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("sections", [False, True])
def test_names_are_those_of_the_version_and_what_is_over_goes(sections: bool) -> None:
    """Also where the inventories of parts are in sections."""
    with tight.tiny() if sections else nullcontext():
        assert (names_are_right() > 0) == sections


def names_are_right() -> int:
    """Thirty epochs of parts that are kept open, stay behind, or are not; how many sections there were."""
    seen = 0
    store, chance = MemoryStore(), random.Random(4)
    flow = flow_of(counted=True, order_by="at")
    hands = Hands(flow, store, 3, chance, grace=0, keep=3)
    for n in range(30):
        rows = [chance.randrange(40) for _ in range(chance.choice([0, 5, 30]))]
        table = pa.table(
            {"id": rows, "city": [f"c{r % 7}" for r in rows], "at": [n] * len(rows)},
            pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.int64()}),
        )
        hands.epoch({"orders": table})
        manifest, manifest_log = hands.coordinator.manifest, hands.coordinator.log.manifest_log
        assert manifest_log.names == collect_file_names(store, manifest)
        seen += sum(len(read_inventory_text(store, part).sections) for part in manifest.inventories)
        assert dd.fsck(store.reopen()).ok
        kept = set().union(
            *(collect_file_names(store, load_manifest(store, number)) for number in store.list_manifests())
        )
        assert kept <= set(store.shared.blobs) and len(store.list_manifests()) <= 3
        if n % 10 == 9:
            hands.close()
            hands = Hands(flow, store.reopen(), None, chance, grace=0, keep=3)
            assert hands.coordinator.partitions == 3
            assert hands.coordinator.log.manifest_log.names == collect_file_names(store, manifest)
    assert [each.epoch for each in manifest.receipts] == [28, 29, 30]
    return seen


def test_a_batch_is_taken_once_and_in_its_turn() -> None:
    store = MemoryStore()
    coordinator = opened(store, keep=2)
    feed = Feed("a", 4)
    with raises(FeedChanged):
        coordinator.committed(feed=feed)
    assert coordinator.committed(feed=feed, adopt=True) is None
    epoch(coordinator, feed=feed, adopt=True)
    epoch(coordinator, feed=Feed("a", 5))
    epoch(coordinator)  # whatever else goes on, the query's numbers do
    epoch(coordinator, feed=Feed("a", 6))
    assert coordinator.manifest.feed == Feed("a", 6) and [e.batch for e in coordinator.manifest.receipts] == [None, 6]
    coordinator = opened(store, keep=2)
    kept = coordinator.committed(feed=Feed("a", 6))
    assert kept is not None and kept.epoch == 4
    again = coordinator.replayed(kept, {"orders": 3}, {"orders": "03" * 16})
    assert again.replayed and again.epoch == 4 and again.outputs == kept.calls[0].outputs
    assert (again.time, again.frontier, again.counts) == (4, 5, {"applied": 3})
    for rows in (({"orders": 2}, {"orders": "02" * 16}), ({"orders": 3}, {"orders": "13" * 16}), ({}, {})):
        with raises(ReplayMismatch):
            coordinator.replayed(kept, *rows)
    with raises(EpochSkipped):
        coordinator.begin(feed=Feed("a", 8))
    with raises(EpochSkipped):
        coordinator.committed(feed=Feed("a", 5))
    with raises(EpochSkipped):
        coordinator.begin(feed=Feed("a", 6))
    with raises(SpecError):
        coordinator.committed(feed=feed, epoch=5)
    for bad in (Feed("a", -1), Feed("a" * 201, 0), Feed("a", True), Feed("a", 1.0), Feed(None, 1)):  # type: ignore[arg-type]
        with raises(SpecError):
            coordinator.committed(feed=bad)
    assert coordinator.committed(feed=Feed("a", 7)) is None


def test_another_query_feeds_a_state_only_when_it_is_adopted() -> None:
    coordinator = opened()
    epoch(coordinator, feed=Feed("a", 0))
    epoch(coordinator, feed=Feed("a", 1))
    for batch in (0, 1, 2, 9):
        with raises(FeedChanged):
            coordinator.begin(feed=Feed("b", batch))
    start = coordinator.begin(feed=Feed("b", 2), adopt=True)
    with raises(SpecError):
        coordinator.finish(start, [], feed=Feed("b", 1))
    coordinator.finish(start, Tasks(coordinator, start).all(), feed=Feed("b", 2))
    assert coordinator.manifest.feed == Feed("b", 2)
    assert [each.batch for each in coordinator.manifest.receipts] == [None, None, 2]
    found = coordinator.committed(feed=Feed("b", 2), adopt=True)
    assert found is not None and found.epoch == 3
    with raises(EpochSkipped):  # it was the other query's
        coordinator.committed(feed=Feed("b", 1), adopt=True)
    with pytest.raises(FeedChanged):
        coordinator.committed(feed=Feed("a", 2))


def test_a_query_has_rows_for_the_same_inputs_until_another_is_adopted() -> None:
    coordinator = opened()
    epoch(coordinator, feed=Feed("a", 0, ("s", "t")))
    epoch(coordinator, feed=Feed("a", 1))  # of whom that is not known
    for batch in (1, 2):
        with raises(FeedChanged):
            coordinator.begin(feed=Feed("a", batch, ("s",)))
    epoch(coordinator, feed=Feed("a", 2, ("s", "t")))
    epoch(coordinator, feed=Feed("b", 0, ("s",)), adopt=True)
    assert coordinator.manifest.feed == Feed("b", 0, ("s",))


def test_a_query_without_an_id_is_known_by_its_numbers() -> None:
    coordinator = opened(keep=2)
    for batch in range(4):
        epoch(coordinator, feed=Feed("", batch))
    kept = coordinator.committed(feed=Feed("", 2))
    assert kept is not None and coordinator.replayed(kept, {"orders": 3}, {"orders": "03" * 16}).epoch == 3
    with raises(FeedChanged):
        coordinator.replayed(kept, {"orders": 1}, {"orders": "01" * 16})
    with raises(FeedChanged):
        coordinator.begin(feed=Feed("", 0))
    last = coordinator.committed(feed=Feed("", 3))
    assert last is not None
    with pytest.raises(ReplayMismatch):
        coordinator.replayed(last, {"orders": 1}, {"orders": "01" * 16})
    # When the id is known one day, it is bound, and kept where it is not known again.
    epoch(coordinator, feed=Feed("a", 4))
    epoch(coordinator, feed=Feed("", 5))
    assert coordinator.manifest.feed == Feed("a", 5)
    epoch(coordinator, feed=Feed("", 0), adopt=True)
    assert coordinator.manifest.feed == Feed("", 0) and [e.batch for e in coordinator.manifest.receipts] == [None, 0]


def test_epochs_by_number() -> None:
    coordinator = opened(keep=2)
    for number in (1, 2, 3):
        assert coordinator.committed(epoch=number) is None
        epoch(coordinator, epoch=number)
    kept = coordinator.committed(epoch=2)
    assert kept is not None and kept.epoch == 2
    for number in (0, 1, 5, -1):
        with raises(EpochSkipped):
            coordinator.begin(epoch=number)


def test_two_coordinators_of_one_state() -> None:
    store = MemoryStore()
    one, other = opened(store), opened(store)
    start, late = one.begin(), other.begin()
    one.finish(start, Tasks(one, start).all())
    with raises(Fenced):
        other.finish(late, Tasks(other, late).all())
    with pytest.raises(Fenced):
        other.begin()
    assert opened(store).begin().epoch == 2 and one.begin().epoch == 2


@pytest.mark.parametrize("happened", [False, True])
def test_a_driver_that_dies_while_it_publishes_is_told_by_the_state(happened: bool) -> None:
    class Dying(MemoryStore):
        """Says nothing of what became of the manifest that is published."""

        def publish(self, number: int, data: bytes) -> bool:
            if number < 2:
                return super().publish(number, data)
            if happened:
                super().publish(number, data)
            raise OutcomeUnknown("publish", "the driver died", "open it again")

    store = MemoryStore()
    coordinator = EpochDriver.open(flow_of(), Dying(store.shared), DriverOptions(partitions=2))
    epoch(coordinator, feed=Feed("a", 0))
    with pytest.raises(OutcomeUnknown):
        epoch(coordinator, feed=Feed("a", 1))
    again = opened(store)
    found = again.committed(feed=Feed("a", 1))
    assert (found is not None) == happened
    if found is None:
        epoch(again, feed=Feed("a", 1))
    else:
        assert again.replayed(found, {"orders": 3}, {"orders": "03" * 16}).epoch == 2
    assert again.epoch == 2 and opened(store).committed(feed=Feed("a", 2)) is None


def test_the_frontier_follows_earlier_batches_less_the_lateness() -> None:
    coordinator = opened(flow=flow_of(time="at", lateness=5))
    start = coordinator.begin()
    assert (start.to, start.frontier) == (NEVER, NEVER)
    coordinator.finish(start, Tasks(coordinator, start).all())  # the greatest time is 11
    assert coordinator.manifest.greatest == {"orders": 11} and coordinator.manifest.receipts[-1].calls[0].kind == "push"
    start = coordinator.begin()
    assert start.to == 6
    coordinator.finish(start, Tasks(coordinator, start).all())
    assert coordinator.manifest.frontier == 6 and coordinator.begin().to == 16
    start = coordinator.begin(close=True)
    assert start.to == CLOSED and start.closes_all_times
    done = coordinator.finish(start, Tasks(coordinator, start).all(0))
    assert done.frontier == CLOSED and (done.time, coordinator.manifest.receipts[-1].calls[0].kind) == (
        CLOSED,
        "advance_to",
    )
    start = coordinator.begin()
    assert start.to == CLOSED and not start.closes_all_times
    without = opened(flow=flow_of(time="at"))
    epoch(without)
    assert without.begin().to == NEVER
    with pytest.raises(WrongMode):
        opened().begin(close=True)


def test_what_a_plan_may_have_got_since() -> None:
    store = MemoryStore()
    epoch(opened(store))
    growing = opened(store, flow_of(counted=True)).growing
    assert growing is not None and growing.new.outputs == ("by_city",)
    with raises(PlanChanged):
        opened(store, flow_of(order_by="at"))
    wider = opened(store, flow_of({"price": pa.float64()}))
    assert wider.log.change.columns == {"orders": ["price"]}
    kept = wider.committed(epoch=1)
    assert kept is not None
    with raises(ReplayMismatch):
        wider.replayed(kept, {"orders": 3}, {"orders": "13" * 16})
    epoch(wider)
    assert [each.epoch for each in wider.manifest.receipts] == [1, 2] and not wider.log.change
    assert [each.epoch for each in wider.manifest.past] == [1]
    with raises(PlanChanged):
        opened(store)
    flow = dd.Flow()
    flow.upserts("orders", {"id": pa.int64()}, dd.Upsert(key="id"))
    with raises(SpecError):
        opened(fresh := MemoryStore(), flow)
    assert fresh.list_manifests() == []


def test_commands_quote_a_folder_with_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    driver = opened(folder)
    epoch(driver)
    driver.close()
    with raises(SpecError):
        opened(folder, partitions=3)
    with raises(StateRefused):
        flow_of().open(folder)


def test_partitions_are_the_states_until_it_is_rescaled() -> None:
    store = MemoryStore()
    assert opened(store, partitions=3).partitions == 3
    assert opened(store, partitions=None, default_partitions=8).partitions == 3
    assert opened(store, partitions=5).partitions == 5  # nothing was committed yet
    epoch(opened(store, partitions=5))
    before = store.list_manifests()
    with raises(SpecError):
        opened(store, partitions=2)
    assert store.list_manifests() == before
    assert opened(store, partitions=5).partitions == 5
    assert opened(store, partitions=None).begin().partitions == 5
    assert opened(partitions=None, default_partitions=7).partitions == 7
    for bad in (0, -1, True, 2.0, 1 << 17, "2"):
        with raises(SpecError):
            opened(store, partitions=bad)
    for option in ("keep", "retain", "default_partitions"):
        with raises(SpecError):
            opened(store, **{option: -1})


def test_a_state_of_one_engine_goes_on_with_one_partition_and_back() -> None:
    store, flow = MemoryStore(), flow_of(counted=True)
    rows = pa.table({"id": [1, 2, 3], "city": ["Bern", "Bern", "Wil"], "at": [1, 1, 1]})
    with flow.open(store.reopen()) as engine:
        engine.step({"orders": rows}, time=9)
    hands = Hands(flow, store.reopen(), 1, random.Random(3))
    coordinator = hands.coordinator
    assert coordinator.live.whole and coordinator.log.manifest_log.names == collect_file_names(
        store, coordinator.manifest
    )
    start = coordinator.begin()
    assert start.inventories == (coordinator.manifest.inventories,) * 2 and start.time == 10
    tasks = Tasks(coordinator, start)
    [whole] = coordinator.manifest.inventories
    kept = tasks.receipt(1, 0, inventory=whole, nonce="", added=())
    with raises(ReceiptsDisagree):
        coordinator.finish(start, [tasks.receipt(0, 0), kept])
    assert hands.epoch({"orders": rows})[0].counts == {"noop": 3}  # nothing is sent to the count
    committed, outputs = hands.epoch({"orders": rows.set_column(1, "city", [["Wil"] * 3])})
    assert committed.epoch == 3 and sorted(outputs["by_city"].column("_diff").to_pylist()) == [-1, -1, 1]
    assert not coordinator.live.whole and len(coordinator.manifest.inventories) == 2
    assert coordinator.log.manifest_log.names == collect_file_names(store, coordinator.manifest)
    hands.close()
    with flow.open(store.reopen()) as engine:
        assert engine.epoch == 3 and engine.read("by_city").to_pylist() == [{"city": "Wil", "count": 3, "_diff": 1}]
        engine.step({"orders": rows}, time=20)
    assert len(load_newest_manifest(store).inventories) == 1  # type: ignore[union-attr]
    hands = Hands(flow, store.reopen(), None, random.Random(3))
    assert hands.epoch({})[0].epoch == 5
    hands.close()


def test_much_is_deleted_while_the_next_tasks_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    coordinator = opened(tmp_path / "state", partitions=30, grace=0, keep=1)
    monkeypatch.setattr(module, "APART", 40)
    real, free = LocalStore.delete_many, {threading.current_thread()}  # threads that need not wait

    def slow(store: LocalStore, names: Any) -> None:
        until = time.monotonic() + 120
        while threading.current_thread() not in free and time.monotonic() < until:
            time.sleep(0.001)
        real(store, names)

    monkeypatch.setattr(LocalStore, "delete_many", slow)
    log, there = coordinator.log.manifest_log, []
    for _ in range(4):
        start = coordinator.begin()
        receipts = Tasks(coordinator, start).all()
        gone = [each.added[0].name for each in there]
        given = [replace(each, gone=(name,)) for each, name in zip(receipts, gone, strict=False)] or receipts
        free.update({log._sweeping} - {None})
        coordinator.finish(start, given)
        there = receipts
        assert log._sweeping is None or log._sweeping.is_alive()
    free.update({log._sweeping} - {None})
    coordinator.close()
    left = {entry.name for entry in LocalStore(tmp_path / "state").list_blobs()}
    kept = [load_manifest(log.store, number) for number in log.store.list_manifests()]
    assert len(kept) == 2
    assert left == set().union(*(collect_file_names(log.store, each) for each in kept))


def test_outputs_stay_as_long_as_their_epoch_is_kept() -> None:
    store = MemoryStore()
    coordinator = opened(store, keep=2, grace=0)
    files = []
    for n in range(6):
        files += epoch(coordinator, rows=n + 1).outputs["orders"].blobs
        assert all((blob.name in coordinator.log.manifest_log.names) == (blob in files[-2:]) for blob in files)
    assert [blob.name in store.shared.blobs for blob in files] == [False] * 3 + [True] * 3  # one version is still kept
    assert all(is_state_file(blob) for blob in files)

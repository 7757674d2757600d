"""The driver of epochs: its hold on a state of many partitions, of which it makes epochs from what tasks receipt.

Invariant: an epoch is published whole or not at all, from one receipt of every task of one epoch start, all of whose
files are there; what was committed is answered again and never made again. Tasks run elsewhere, several times. A
driver may die between any two of its steps. Of two drivers, who loses a number writes no more.

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> driver = EpochDriver.open(flow, MemoryStore(), partitions=2)
>>> driver.finish(driver.begin(), [])
Traceback (most recent call last):
    ...
ddflow.errors.MissingReceipts: commit an epoch of 1 levels and 2 partitions: there is no receipt of partitions [0, ...
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from os import PathLike
from time import perf_counter_ns
from typing import Final, Literal

from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.dataflow.budget import parse_size
from ddflow.errors import (
    DdflowError,
    EpochSkipped,
    OutcomeUnknown,
    ReplayMismatch,
    SpecError,
    StorageFailed,
    StorageFull,
    TimeWentBack,
    WrongMode,
)
from ddflow.partitions import batch_ids as feeds
from ddflow.partitions.epoch_start import EpochStart
from ddflow.partitions.live_files import Holdings, look, look_for
from ddflow.partitions.merged_receipts import ROWS, Gathered, call_digest, gather, greatest
from ddflow.partitions.opened import KEPT, Opened, Wanted, opened
from ddflow.partitions.receipt import Committed, Receipt
from ddflow.partitions.stages import cut
from ddflow.plan.codec import describe, fingerprint
from ddflow.plan.collection import Plan
from ddflow.plan.compatibility import PlanChange
from ddflow.storage.epochs import Kind
from ddflow.storage.feeding import EVENTS, fed_by
from ddflow.storage.garbage import gc, inside, names_of
from ddflow.storage.manifest import Call, Epoch, Feed, Manifest
from ddflow.storage.manifest_log import GRACE
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Store
from ddflow.time import CLOSED, NEVER, shown

APART: Final = 200
"""Of more files than these, the deleting goes on while the tasks of the next epoch run."""
TIDY: Final = 2_000
"""Of more inventories than these, what others left is for ``ddflow gc``, and no commit waits for it."""


class EpochDriver:
    """``flow``, ``cut``: the plan.  ``partitions``: of the state.  `open` makes it."""

    def __init__(self, flow: Plan, opened: Opened, wanted: Wanted) -> None:
        self.flow, self.cut, self.plan, self.given = flow, cut(flow), describe(flow), wanted
        self.ledger, self.change, self.outputs = opened
        manifest = self.ledger.manifest
        # What was never committed has no partitions yet, whatever its maker wanted.
        self.partitions = manifest.spread if manifest.partitions else wanted.partitions or manifest.spread
        self.holdings = Holdings.read(self.ledger.store, manifest.partitions, self.cut.levels, self.partitions)
        self.ledger.names = self.holdings.names() | {blob.name for blob in manifest.outputs() if inside(blob)}
        self._base: EpochStart | None = None
        self._feed: Feed | None = None
        self._asked: Feed | None = None
        self._tidy = False

    @classmethod
    def open(
        cls,
        flow: Plan,
        state: str | PathLike[str] | Store,
        *,
        partitions: int | None = None,
        default_partitions: int = 1,
        outputs: str | PathLike[str] | None = None,
        trust: Literal["owner", "group"] = "owner",
        grace: float = GRACE,
        keep: int = KEPT,
        retain: int = 0,
        memory: str | int | None = None,
        secret: Secret | None = None,
        checkpoint: str | None = None,
    ) -> EpochDriver:
        """Take hold of a state, or make a new one there.  O(bytes of its inventories).

        ``partitions``: None for as many as the state has, ``default_partitions`` for a new one.  ``outputs``: a folder
        for Parquet files, as in `Flow.open`.  ``grace``: seconds that a version outlives its successor.  ``keep``: how
        many epochs can be told again.  ``retain``, ``memory`` (bytes of one task), ``secret``: as in `Flow.open`.
        ``checkpoint``: where the query that gives batches keeps its own, for messages.

        Raises `PlanChanged`, `SpecError` (for another number of partitions than it has, too), `StateRefused`,
        `CorruptState`, and what the store raises.
        """
        flow, wanted = (
            flow.frozen(),
            Wanted(
                partitions,
                default_partitions,
                outputs,
                trust,
                grace,
                keep,
                retain,
                parse_size(memory),
                secret,
                checkpoint,
            ),
        )
        cut(flow)  # a plan that has no place on Spark is refused before anything is made
        found = opened(flow, state, wanted)
        try:
            driver = cls(flow, found, wanted)
            found.outputs.show(found.ledger.manifest.receipts)
        except BaseException:
            found.ledger.store.close()
            raise
        return driver

    @property
    def manifest(self) -> Manifest:
        """The state's newest, as far as this driver knows."""
        return self.ledger.manifest

    @property
    def epoch(self) -> int:
        """The last one that was committed."""
        return self.manifest.epoch

    def close(self) -> None:
        """Let go of the store.  Twice is harmless."""
        self.ledger.settle()
        with suppress(DdflowError):  # whoever opens the state next does it again
            self.outputs.sync()
        self.ledger.store.close()

    def committed(self, *, epoch: int | None = None, feed: Feed | None = None, adopt: bool = False) -> Epoch | None:
        """What an epoch, or a batch of a query, was committed as; None when it is the next one.  O(epochs kept).

        ``adopt``: take over the batches of another query.  Raises `EpochSkipped`, `FeedChanged`, `SpecError` for both.
        """
        manifest, where = self.manifest, self.ledger.store.where
        if feed is not None:
            if epoch is not None:
                raise SpecError(f"epoch={epoch}, feed={feed!r}", "they may contradict each other", "give one of them")
            self._asked = feed
            return feeds.told(where, manifest.feed, feed, manifest.receipts, adopt, self.given.checkpoint)
        if epoch is None or epoch == self.epoch + 1:
            return None
        found = next((each for each in manifest.receipts if each.epoch == epoch and each.calls), None)
        if found is None:
            raise EpochSkipped(
                f"epoch {epoch} of {where}",
                f"the last one committed is {self.epoch}, and {[each.epoch for each in manifest.receipts]} are kept",
                f"give epoch {self.epoch + 1}",
            )
        return found

    def replayed(self, epoch: Epoch, rows: Mapping[str, int], digests: Mapping[str, str]) -> Committed:
        """What a committed epoch gave, whose rows are given again.  ``rows``, ``digests``: of all, by input.

        O(inputs).  Raises `ReplayMismatch` when they are others; `FeedChanged` where they are by a query without an
        id, which then numbers its batches anew.
        """
        call = epoch.calls[0]
        found = call_digest(call.kind, call.time, rows, digests)
        if len(epoch.calls) > 1 or found != call.digest:
            now, asked = self.manifest.feed, self._asked
            if now is not None and asked is not None and feeds.began_anew(now, asked, epoch):
                raise feeds.restarted(self.ledger.store.where, now, asked, self.given.checkpoint)
            more = f", and the plan has got the columns {self.change.columns} since" if self.change.columns else ""
            raise ReplayMismatch(
                f"give epoch {epoch.epoch} of {self.ledger.store.where} again",
                f"it was committed of rows with digest {call.digest}, these have {found}{more}",
                "give the same rows again, or go on with the next epoch",
            )
        return Committed(
            epoch.epoch, call.time, call.frontier, call.counts, dict(rows), call.outputs, call.figures, True
        )

    def begin(
        self, *, epoch: int | None = None, feed: Feed | None = None, close: bool = False, adopt: bool = False
    ) -> EpochStart:
        """Begin the next epoch: what its tasks start from.  O(partitions).  One that was begun before is forgotten.

        ``epoch``, ``feed``, ``adopt``: as in `committed`.  ``close``: close all times, hold-back mode.

        Raises what `committed` raises; `EpochSkipped` for what is committed; `Fenced`; `WrongMode` for ``close`` in
        epoch mode; `TimeWentBack` when there are no more times.
        """
        manifest, where = self.manifest, self.ledger.store.where
        if (found := self.committed(epoch=epoch, feed=feed, adopt=adopt)) is not None:
            raise EpochSkipped(
                f"begin epoch {found.epoch} of {where}",
                "it is committed",
                "ask for it with committed(), and tell it again with replayed()",
            )
        if close and not self.flow.holds_back:
            raise WrongMode("close=True", "the flow is in epoch mode: its inputs name no time column", "leave it out")
        self.ledger.check_newest()
        number, time = self.epoch + 1, max(self.epoch, manifest.last) + 1
        if time >= CLOSED and not self.flow.holds_back:
            raise TimeWentBack(
                f"begin epoch {number} of {where}",
                f"its last time is {shown(manifest.last)}",
                "there is none after it: make a new state",
            )
        store, secret = self.ledger.store, manifest.secret
        self._feed, self._base = (
            feed,
            EpochStart(
                store=store if isinstance(store, MemoryStore) else store.where,
                trust=self.given.trust,
                number=self.ledger.number,
                digest=self.ledger.digest,
                epoch=number,
                partitions=self.partitions,
                secret=secret,
                frontier=manifest.frontier,
                last=manifest.last,
                since=manifest.since,
                time=time,
                to=CLOSED if close else self._to(),
                horizons=dict(manifest.horizons),
                inventories=self.holdings.parts,
                folder=self.outputs.path,
                retain=self.given.retain,
                memory=self.given.memory,
            ),
        )
        return self._base

    def _to(self) -> int:
        """The frontier that rows of earlier epochs allow to close to."""
        manifest, least = self.manifest, CLOSED
        for name, input in self.flow.inputs.items():
            seen = manifest.greatest.get(name, NEVER)
            if input.spec.lateness is None or seen == NEVER:
                return manifest.frontier
            least = min(least, max(seen - input.spec.lateness, NEVER))
        return max(least, manifest.frontier)

    def finish(self, base: EpochStart, receipts: Iterable[Receipt], *, feed: Feed | None = None) -> Committed:
        """Publish an epoch, of one receipt a task.  O(receipts + files of the state).

        Raises `MissingReceipts`, `ReceiptsDisagree`, `SpecError` for those of others, `StateRefused` when files are
        not there: nothing was committed then, and the epoch can be begun again; and what a commit raises: `Fenced`,
        `StorageFull`, `StorageFailed`, `OutcomeUnknown`.
        """
        began = perf_counter_ns()
        if base is not self._base and base != self._base:
            raise SpecError(
                f"finish epoch {base.epoch}",
                "it was not begun, or another was begun since",
                "begin it, and give what that returns",
            )
        feed = self._feed if feed is None else feed
        if feed != self._feed:
            raise SpecError(f"finish epoch {base.epoch} as {feed}", f"it was begun as {self._feed}", "give the same")
        whole = gather(receipts, base.digest, self.cut.levels, self.partitions)
        look(self.cut, whole.taken, folder=self.outputs.folder is not None)
        holdings = self.holdings.after(self.ledger.store, whole.taken)
        look_for(self.ledger.store, self.outputs.folder, base.epoch, whole, self.holdings.known())
        new = self._next(base, whole, feed)
        self.ledger.settle()
        if not self._tidy:
            self._look_after()
        self.outputs.sync()
        call = new.receipts[-1].calls[0]
        self.ledger.commit(
            new,
            holdings.inventories,
            holdings.names() | {b.name for b in new.outputs() if inside(b)},
            f"commit of {call.kind}",
        )
        self.holdings, self.change, self._base = holdings, PlanChange(), None
        try:
            self.outputs.show(new.receipts[-1:])
        except (StorageFull, StorageFailed) as error:  # which would say that it did not happen
            raise OutcomeUnknown(
                f"commit epoch {base.epoch}",
                f"it is committed, and its outputs are hidden: {error.found}",
                "open the state again, which shows them",
            ) from error
        self.ledger.sweep(apart=APART)
        figures = whole.figures | {"tasks": len(whole.taken), "commit": (perf_counter_ns() - began) // 1000}
        return Committed(base.epoch, call.time, whole.frontier, whole.counts, whole.rows, whole.outputs, figures, False)

    def _next(self, base: EpochStart, whole: Gathered, feed: Feed | None) -> Manifest:
        """What the state will be."""
        manifest = self.manifest
        kind: Kind = "push" if self.flow.holds_back else "step"
        time = 0 if self.flow.holds_back else base.time
        if base.closes:
            kind, time = "advance_to", CLOSED
        digest = call_digest(kind, time, whole.rows, whole.digests)
        figures = whole.figures | {f"{ROWS}{name}": n for name, n in whole.rows.items()}
        call = Call(kind, time, digest, whole.frontier, whole.counts, whole.outputs, figures)
        # Those of a plan with fewer columns nobody could compare; batch numbers of another query mean nothing.
        before = (
            () if self.change.columns else manifest.receipts[max(0, len(manifest.receipts) + 1 - self.given.keep) :]
        )
        if feeds.begins_anew(manifest.feed, feed):
            before = tuple(replace(each, batch=None) for each in before)
        receipts = (*self.outputs.kept(before), Epoch(base.epoch, (call,), None if feed is None else feed.batch))
        return replace(
            manifest,
            epoch=base.epoch,
            plan=self.plan,
            fingerprint=fingerprint(self.plan),
            frontier=whole.frontier,
            last=whole.last,
            since=max(whole.since, manifest.since),
            receipts=receipts,
            folder=self.outputs.path or manifest.folder,
            spread=self.partitions,
            horizons=greatest((manifest.horizons, whole.horizons)),
            greatest=greatest((manifest.greatest, whole.greatest)),
            feed=feeds.bound(manifest.feed, feed),
            fed=fed_by(manifest.fed, [name for name, n in whole.rows.items() if n], EVENTS, base.epoch),
        )

    def _look_after(self) -> None:
        """Collect what is garbage, once, and take over the versions that others left, as an engine does."""
        self._tidy = True
        store = self.ledger.store
        try:
            if len(store.numbers()) * len(self.holdings.inventories) <= TIDY:
                gc(store, grace=self.ledger.grace)
                self.ledger.remember(names_of)
        except DdflowError:
            self.ledger.grace = math.inf

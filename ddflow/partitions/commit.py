"""Coordinate the epochs of a partitioned state.

The driver begins an epoch, checks the receipts of its tasks, and publishes the epoch. Tasks write files, and only the
driver publishes them, so a retried or repeated task changes nothing. A Spark query gives each batch a number. The
driver computes the next batch, returns the stored result of a committed batch again, and refuses all other batches.

>>> kept = (Epoch(7, (), 4), Epoch(8, (), 5))
>>> [find_batch_epoch("shop", Feed("a", 5), Feed("a", batch), kept) for batch in (6, 4)]
[None, Epoch(epoch=7, calls=(), batch=4, digest='', written=None)]
>>> find_batch_epoch("shop", Feed("a", 5), Feed("b", 0), kept)
Traceback (most recent call last):
    ...
ddflow.errors.FeedChanged: feed batch 0 of query 'b' to shop: the state is fed by query 'a', whose last batch is 5; ...
>>> find_batch_epoch("shop", Feed("a", 5), Feed("b", 0), kept, adopt=True)
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from shlex import quote
from time import perf_counter_ns
from typing import Final, Literal, Self

import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.connectors.parquet.sink import check_outputs_path
from ddflow.dataflow.budget import LEAST, parse_size
from ddflow.engine.epoch_log import KEPT, EpochLog, LogOptions
from ddflow.errors import (
    CommandFix,
    EpochSkipped,
    ErrorText,
    FeedChanged,
    Option,
    PlanChanged,
    ReplayMismatch,
    SpecError,
    TimeWentBack,
    WrongMode,
)
from ddflow.partitions.epoch_start import (
    Backfill,
    EpochStart,
    StateVersion,
    compute_usable_memory,
    find_clock,
    find_store_address,
    missing_time_error,
)
from ddflow.partitions.messages import MessageSummary, load_known_messages
from ddflow.partitions.receipt import (
    OWED,
    ROWS,
    EpochContribution,
    EpochResult,
    LiveFiles,
    Receipt,
    check_files_exist,
    check_receipt_names,
    digest_call,
    extend_inventory_history,
    gather_receipts,
    join_outputs,
    max_by_name,
)
from ddflow.partitions.rewrite import BackfillPlan
from ddflow.partitions.stages import cut_stages, find_repartitioned_nodes
from ddflow.plan.plan import Plan
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.epochs import QUERY, Epoch, Feed, Kind
from ddflow.storage.feeding import EVENTS, record_feed_call
from ddflow.storage.manifest import PARTITIONS, Epoch as CommittedEpoch, EpochCall, Feed as FeedRecord, Manifest, Output
from ddflow.storage.manifest_log import GRACE
from ddflow.storage.protocol import Store
from ddflow.terminal import format_size
from ddflow.time import CLOSED, NEVER, format_time, read_clock


@dataclass(frozen=True)
class DriverOptions:
    """Options of an `EpochDriver`. Raises `SpecError`.

    - ``partitions``: the number of partitions. If ``partitions`` is None, an existing state keeps its number of
      partitions, and a new state gets ``default_partitions``.
    - ``outputs``: a folder for Parquet files, as in `Flow.open`.
    - ``grace``: the seconds for which a version is retained after the next version is published.
    - ``keep``: the number of last epochs that can be replayed.
    - ``memory``: the memory of one task, as in `Flow.open`.
    - ``trust``, ``retain``, ``secret``: as in `Flow.open`.
    - ``checkpoint``: the checkpoint folder of the query that feeds batches, for messages.

    >>> DriverOptions(partitions=0)
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: partitions=0: that is not possible; use a whole number from 1 to 65536
    """

    partitions: int | None = None
    default_partitions: int = 1
    outputs: str | PathLike[str] | None = None
    trust: Literal["owner", "group"] = "owner"
    grace: float = GRACE
    keep: int = KEPT
    retain: int | None = None
    memory: str | int | None = None
    secret: Secret | None = None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("partitions", 1, PARTITIONS),
            ("default_partitions", 1, PARTITIONS),
            ("keep", 1, 1 << 16),
            ("retain", 0, CLOSED),
        ):
            given = getattr(self, name)
            number = isinstance(given, int) and not isinstance(given, bool)
            if not (number and least <= given <= most) and (given is not None or name not in ("partitions", "retain")):
                raise SpecError(
                    Option(name, given), "that is not possible", f"use a whole number from {least} to {most}"
                )
        check_outputs_path(self.outputs)  # before anything is written
        if (size := self.task_memory) is not None and compute_usable_memory(size) < LEAST:
            raise SpecError(
                f"memory={format_size(size)}",
                "that is too small for a task to work in",
                f"use {format_size(2 * LEAST)} or more",
            )

    @property
    def task_memory(self) -> int | None:
        """The bytes of memory that a task may use, or None for no limit."""
        return parse_size(self.memory)

    def check_manifest(self, manifest: Manifest, where: str) -> None:
        """Check that these options fit the manifest of a state.

        Raises `SpecError` if the state has another number of partitions.
        """
        if not manifest.inventories:  # a state without inventories has no rows yet
            return
        if self.partitions not in (None, manifest.partitions):
            found = f"it has {manifest.partitions} partitions, and opening a state does not rewrite it"
            other = f"ddflow rescale {quote(where)} --partitions {self.partitions}, or on Spark spark_bridge.rescale"
            remedy = f"omit it, or rescale the state first: {other}"
            raise SpecError(f"open {where} with partitions={self.partitions}", found, remedy)


ADOPT: Final = Option("adopt", True)
AGAIN: Final = ErrorText(
    "rows that the state has seen change nothing if events have an order (order_by=, ",
    Option("seq"),
    ", or their format's), but bad messages go into <input>.bad a second time",
)
"""A warning that is part of some messages: it says what happens if a source is read again from its beginning."""


def find_batch_epoch(
    where: str,
    now: Feed | None,
    asked: Feed,
    kept: Iterable[Epoch],
    adopt: bool = False,
    checkpoint: str | None = None,
) -> Epoch | None:
    """Return the epoch in which a batch was committed. Return None if the batch is new. Pure; O(epochs kept).

    ``now``, ``asked``: the query and batch that the state had last, and those to feed. ``kept``: epochs that can be
    replayed. ``adopt``: whether to accept another query. ``checkpoint``: the checkpoint folder, for messages. Raises
    `FeedChanged` for another query, for a query without an id that restarts its batch numbers, and for a query whose
    first batches went to another state. Raises `EpochSkipped` if batches before this batch are missing, or if its epoch
    is no longer kept. Raises `SpecError`.
    """
    if not isinstance(asked.query, str) or len(asked.query) > QUERY or not _is_batch_number(asked.batch):
        raise SpecError(
            f"feed {asked!r} to {where}",
            "that is not a batch of a query",
            f"pass Feed(query, batch): a text of at most {QUERY} characters, and a whole number from 0",
        )
    what = f"feed batch {asked.batch} of {_describe_query(asked.query)} to {where}"
    folder = _describe_checkpoint_folder(checkpoint)
    if now is None and asked.batch and not adopt:
        raise FeedChanged(
            what,
            f"no query has fed this state, so the {asked.batch} batches before it went elsewhere: "
            "the checkpoint belongs to another state, or this state was created again",
            f"pass another folder as checkpoint=, or delete {folder}, to start from the "
            "beginning; or start with " + ADOPT + ", if the state has the rows of these batches",
        )
    if now is None or _is_query_takeover(now, asked, adopt):
        return None
    fed = f"the state is fed by {_describe_query(now.query)}, whose last batch is {now.batch}"
    if now.query and asked.query and now.query != asked.query:
        raise FeedChanged(
            what,
            fed,
            f"start this query, whose checkpoint is {folder}, with a separate state; "
            "or, if the checkpoint of the other query is lost, with " + ADOPT + ": " + AGAIN,
        )
    if now.inputs and asked.inputs and now.inputs != asked.inputs:
        raise FeedChanged(
            what,
            f"it has rows for {list(asked.inputs)}, but had rows for {list(now.inputs)}: its checkpoint identifies "
            "inputs only by their order",
            f"pass frames for {list(now.inputs)}; or pass another folder as checkpoint= and "
            "start with " + ADOPT + ", from rows that the state has not seen",
        )
    if asked.batch == now.batch + 1:
        return None
    if asked.batch > now.batch + 1:
        raise EpochSkipped(
            what,
            f"{fed}: {asked.batch - now.batch - 1} batches are missing",
            f"restore state and checkpoint as of the same time; or delete {folder} and "
            "start with " + ADOPT + ", which reads the source from its beginning: " + AGAIN,
        )
    found = next((each for each in kept if each.batch == asked.batch), None)
    if found is None and not asked.query and asked.batch == 0:
        raise query_restart_error(where, now, asked, checkpoint)
    if found is None:
        raise EpochSkipped(
            what,
            f"{fed}, and batches that were fed before {_describe_oldest_batch(kept)} are no longer kept",
            "the checkpoint is older than the state: restore both as of the same time; or "
            f"delete {folder} and start with " + ADOPT + ", which reads the source from its beginning: " + AGAIN,
        )
    return found


def query_restart_error(where: str, now: Feed, asked: Feed, checkpoint: str | None = None) -> FeedChanged:
    """Build the error for a query without an id that restarts its batch numbers at 0."""
    return FeedChanged(
        f"feed batch {asked.batch} of {_describe_query(asked.query)} to {where}",
        f"batch {asked.batch} was fed before with other rows, and the last batch was {now.batch}: this "
        "is another query, or its checkpoint was deleted",
        f"restore {_describe_checkpoint_folder(checkpoint)}; or start with " + ADOPT + ": " + AGAIN,
    )


def advance_feed(now: Feed | None, asked: Feed | None) -> Feed | None:
    """Return the query and last batch of a state after an epoch.

    If the epoch has no batch, query and batch stay the same. Pure.
    """
    if asked is None or now is None:
        return asked or now
    if is_other_query(now, asked):
        return asked
    return Feed(asked.query or now.query, asked.batch, asked.inputs or now.inputs)


def is_other_query(now: Feed | None, asked: Feed | None) -> bool:
    """Return whether a batch comes from another query than the earlier batches.

    Batch numbers of different queries cannot be compared.
    """
    if now is None or asked is None:
        return False
    return asked.batch != now.batch + 1 or bool(now.query and asked.query and now.query != asked.query)


def is_query_restart(now: Feed, asked: Feed, epoch: Epoch) -> bool:
    """Return whether a query without an id restarted its batch numbers.

    Call this function only if a batch differs from the epoch with the same batch number.
    """
    return not (now.query and asked.query) and epoch.batch is not None and epoch.batch < now.batch


def _is_query_takeover(now: Feed, asked: Feed, adopt: bool) -> bool:
    """Return whether this is the first batch of a query that takes over from another query."""
    if now.query and asked.query:
        return adopt and now.query != asked.query
    return adopt and asked.batch == 0 < now.batch


def _is_batch_number(batch: object) -> bool:
    return isinstance(batch, int) and not isinstance(batch, bool) and 0 <= batch < CLOSED


def _describe_checkpoint_folder(checkpoint: str | None) -> str:
    return "its checkpoint's folder" if checkpoint is None else f"the folder {checkpoint}"


def _describe_query(query: str) -> str:
    return f"query {query!r}" if query else "a query without an id"


def _describe_oldest_batch(kept: Iterable[Epoch]) -> str:
    batches = [each.batch for each in kept if each.batch is not None]
    return f"batch {min(batches)}" if batches else "now"


APART: Final = 200
"""If more files than this must be deleted, a separate thread deletes them while the tasks of the next epoch run."""


class EpochDriver:
    """The driver that begins and commits the epochs of a state. `open` creates it.

    - ``flow``, ``cut``: the plan and its stages.
    - ``log``: the epochs of the state.
    - ``partitions``: the number of partitions.
    - ``heard``: the facts about the messages of each input that takes messages.
    - ``growing``: the new parts of the plan, which tasks must fill before the next epoch (`begin_backfill`). The value
      is None if the plan has no new parts.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> driver = EpochDriver.open(flow, MemoryStore(), DriverOptions(partitions=2))
    >>> driver.finish(driver.begin(), [])
    Traceback (most recent call last):
        ...
    ddflow.errors.MissingReceipts: commit an epoch of 1 stages and 2 partitions: there is no receipt of partitions \
[0, ...
    """

    def __init__(self, flow: Plan, log: EpochLog, options: DriverOptions) -> None:
        """Read the inventories of a state. Raises `CorruptState`."""
        self.flow, self.cut, self.log, self.options = flow, cut_stages(flow), log, options
        manifest, stages = log.manifest_log.manifest, self.cut.stages
        # A state without a commit has no partitions yet, so the options decide their number.
        self.partitions = manifest.partitions if manifest.inventories else options.partitions or manifest.partitions
        self.growing: BackfillPlan | None = None
        if manifest.inventories and (log.change.outputs or log.change.inputs):
            self.growing = BackfillPlan(self.cut, log.change, log.manifest_log)
            stages = len(manifest.inventories) // self.partitions
        self.live = LiveFiles.load(log.manifest_log.store, manifest.inventories, stages, self.partitions)
        self._owed: Mapping[str, Output] = {}
        log.resume_from_newest_version(self.live.file_names())
        self.heard = load_known_messages(flow, log.manifest_log.store, self.live.parts[0] if self.live.parts else ())
        self._start: EpochStart | None = None
        self._past: tuple[tuple[tuple[str, ...], ...], ...] = ()
        self._feed: FeedRecord | None = None
        self._asked: FeedRecord | None = None

    @classmethod
    def open(
        cls,
        flow: Plan,
        state: str | PathLike[str] | Store,
        options: DriverOptions = DriverOptions(),
    ) -> Self:
        """Open a state, or create a new state. O(bytes of its inventories).

        Raises `PlanChanged`, `StateRefused`, `CorruptState`, `SpecError` and the errors of the store. `SpecError` is
        also raised if the state has another number of partitions.
        """
        flow = flow.frozen()
        cut_stages(flow)  # refuses a plan that cannot run on Spark before anything is written
        log = EpochLog.open(
            flow,
            state,
            partitions=options.partitions or options.default_partitions,
            fits=options.check_manifest,
            options=LogOptions(options.outputs, options.trust, options.grace, options.keep, options.secret),
        )
        with undo_on_failure(log.close):
            many, before = log.manifest_log.manifest.partitions > 1, log.change.before
            if many and before is not None and (moved := find_repartitioned_nodes(before, log.flow)):
                raise PlanChanged(
                    f"open {log.manifest_log.store.where} with this plan",
                    f"{log.change.description}; that distinguishes rows of {moved}, and moves them to other partitions",
                    ErrorText("rewrite the state first: ", CommandFix("evolve")),
                )
            return cls(log.flow, log, options)

    @property
    def manifest(self) -> Manifest:
        """The newest manifest that this driver has read or published."""
        return self.log.manifest_log.manifest

    @property
    def epoch(self) -> int:
        """The number of the last committed epoch."""
        return self.manifest.epoch

    def close(self) -> None:
        """Close the store.  A second call has no effect."""
        self.log.close()

    def committed(
        self, *, epoch: int | None = None, feed: FeedRecord | None = None, adopt: bool = False
    ) -> CommittedEpoch | None:
        """Find the committed epoch by its number or its batch. Return None if the caller asks for the next epoch.

        O(epochs kept). ``adopt``: whether to take over the batches of another query. Raises `EpochSkipped`,
        `FeedChanged`, and `SpecError` if the caller passes both ``epoch`` and ``feed``.
        """
        manifest, where = self.manifest, self.log.manifest_log.store.where
        if feed is not None:
            if epoch is not None:
                raise SpecError(f"epoch={epoch}, feed={feed!r}", "they may contradict each other", "pass one of them")
            self._asked = feed
            return find_batch_epoch(where, manifest.feed, feed, manifest.receipts, adopt, self.options.checkpoint)
        return None if epoch is None else self.log.find_committed_epoch(epoch, f"epoch {epoch} of {where}")

    def replayed(
        self,
        epoch: CommittedEpoch,
        rows: Mapping[str, int],
        digests: Mapping[str, str],
        time: int | None = None,
    ) -> EpochResult:
        """Check that the caller passes the same rows as before, and return the result of a committed epoch again.

        O(inputs). ``rows``, ``digests``: the counts and digests of all rows, by input. ``time``: the time of the epoch,
        if the caller passes one. Raises `ReplayMismatch` if the rows or the time differ, and `FeedChanged` if a query
        without an id restarted its batch numbers.
        """
        call = epoch.calls[0]
        if time not in (None, call.time):
            raise ReplayMismatch(
                f"replay epoch {epoch.epoch} of {self.log.manifest_log.store.where}",
                f"it was committed at {self._format_time(call.time)}, but the time is now {self._format_time(time)}",
                "pass the same time again, or no time",
            )
        found = digest_call(call.kind, call.time, rows, digests)
        if len(epoch.calls) > 1 or found != call.digest:
            now, asked = self.manifest.feed, self._asked
            if now is not None and asked is not None and is_query_restart(now, asked, epoch):
                raise query_restart_error(self.log.manifest_log.store.where, now, asked, self.options.checkpoint)
            more = (
                ", and the plan's columns have changed since"
                if self.log.find_past_schemas(epoch.epoch) is not None
                else ""
            )
            raise ReplayMismatch(
                f"replay epoch {epoch.epoch} of {self.log.manifest_log.store.where}",
                f"it was committed with rows of digest {call.digest}, but these rows have {found}{more}",
                "pass the same rows again, or continue with the next epoch",
            )
        return EpochResult(
            epoch.epoch, call.time, call.frontier, call.counts, dict(rows), call.outputs, call.figures, True
        )

    def begin(
        self,
        *,
        time: int | None = None,
        epoch: int | None = None,
        feed: FeedRecord | None = None,
        close: bool = False,
        adopt: bool = False,
    ) -> EpochStart:
        """Begin the next epoch, and return the `EpochStart` that its tasks need.

        An unfinished earlier epoch is abandoned. O(partitions).

        ``time``: the time of the epoch if the flow has a clock, in its unit. ``epoch``, ``feed``, ``adopt``: as in
        `committed`. ``close``: close all times, in hold-back mode.

        Raises the errors of `committed`, `EpochSkipped` for a committed epoch, `Fenced`, `WrongMode` for ``close`` in
        epoch mode, and the errors of `choose_time`.
        """
        if (found := self.committed(epoch=epoch, feed=feed, adopt=adopt)) is not None:
            raise EpochSkipped(
                f"begin epoch {found.epoch} of {self.log.manifest_log.store.where}",
                "it is committed",
                "get it with committed(), and return its result with replayed()",
            )
        if close and not self.flow.holds_back:
            raise WrongMode("close=True", "the flow is in epoch mode: its inputs name no time column", "omit it")
        assert self.growing is None, "the new parts of the plan are not filled"
        self.log.manifest_log.check_still_newest()
        time = self.choose_time(time)
        self._feed, self._start = feed, self._build_epoch_start(time, CLOSED if close else self._find_frontier())
        return self._start

    def choose_time(self, time: int | None) -> int:
        """Return the time of the next epoch: ``time`` if the flow has a clock, else the next number. O(1).

        Raises `SpecError` if a flow with a clock gets no time, and `TimeWentBack` if the time is not after the last
        time.
        """
        last, clock = self.manifest.last, find_clock(self.flow)
        if clock is None:
            time = max(self.epoch, last) + 1
        elif time is None:
            raise missing_time_error(clock)
        if not last < time < CLOSED and not self.flow.holds_back:
            raise TimeWentBack(
                f"begin epoch {self.epoch + 1} of {self.log.manifest_log.store.where}",
                f"its last time is {self._format_time(last)}",
                "no later time exists: create a new state" if clock is None else "pass a later time",
            )
        return time

    def stamp_batch(self) -> int | None:
        """Return the time of a batch that starts now, or None if the flow has no clock. O(1).

        The time is the time of this machine, but at least the last time plus one. Raises `SpecError` for a clock of
        dates.
        """
        clock = find_clock(self.flow)
        if clock is None:
            return None
        if pa.types.is_date(clock):
            found = "its clock has dates, so it can have one batch a day"
            raise SpecError("stream into a flow", found, 'use dd.Flow(clock="timestamp"), or spark_bridge.run')
        return max(read_clock(clock), self.manifest.last + 1)

    def _format_time(self, time: int) -> str:
        return format_time(time, self.flow.time_type)

    def _build_epoch_start(self, time: int, to: int, backfill: Backfill | None = None) -> EpochStart:
        """Build the `EpochStart` of the next epoch."""
        manifest, log = self.manifest, self.log.manifest_log
        return EpochStart(
            version=StateVersion(find_store_address(log.store), self.options.trust, log.number, log.digest),
            epoch=self.epoch + 1,
            partitions=self.partitions,
            secret=manifest.secret,
            frontier=manifest.frontier,
            last=manifest.last,
            since=manifest.since,
            time=time,
            to=to,
            horizons=dict(manifest.horizons),
            greatest=dict(manifest.greatest),
            inventories=self.live.parts,
            folder=self.log.outputs.sink_path,
            retain=self._retention_span,
            memory=self.options.task_memory,
            past=self._past,
            backfill=backfill,
        )

    def begin_backfill(self) -> EpochStart:
        """Build the `EpochStart` for the tasks that fill the new parts of the plan.

        Call `begin_backfill` before the next epoch if ``growing`` is not None.

        O(files), and O(bytes) if the new plan partitions the rows differently. Raises `Fenced`, `StorageFull`,
        `StorageFailed`.
        """
        assert self.growing is not None, "the plan has no new parts"
        log = self.log.manifest_log
        log.check_still_newest()
        parts = self.growing.write_inventories(self.options.trust, self.options.task_memory)
        self.live = LiveFiles.load(log.store, parts, self.cut.stages, self.partitions)
        self._start = self._build_epoch_start(self.manifest.last, self.manifest.frontier, self.growing.new)
        return self._start

    def finish_backfill(self, start: EpochStart, receipts: Iterable[Receipt]) -> None:
        """Accept the files of the tasks that filled the new parts of the plan. The next epoch publishes these files.

        ``receipts``: one receipt for each task. Raises the errors of `finish`.
        """
        taken, whole = self._gather_receipts(start, receipts)
        self.live = self.live.apply_receipts(self.log.manifest_log.store, taken)
        self.growing, self._start, self._owed = None, None, whole.outputs

    @property
    def _retention_span(self) -> int:
        """How much history to keep, as a span before the time of the last step.

        Without the option ``retain``, the manifest decides.
        """
        return self.manifest.retain if self.options.retain is None else self.options.retain

    def _find_frontier(self) -> int:
        """Compute the frontier from the rows of earlier epochs."""
        manifest, least = self.manifest, CLOSED
        for name, input in self.flow.inputs.items():
            seen = manifest.greatest.get(name, NEVER)
            if input.spec.lateness is None or seen == NEVER:
                return manifest.frontier
            least = min(least, max(seen - input.spec.lateness, NEVER))
        return max(least, manifest.frontier)

    def finish(self, start: EpochStart, receipts: Iterable[Receipt], *, feed: FeedRecord | None = None) -> EpochResult:
        """Publish an epoch. O(receipts + files of the state).

        ``receipts``: one receipt for each task. Raises `MissingReceipts`, `ReceiptsDisagree`, `SpecError` for receipts
        of another epoch, and `StateRefused` if files are missing. If one of these errors is raised, nothing is
        committed, and you can begin the epoch again. Also raises the errors of a commit: `Fenced`, `StorageFull`,
        `StorageFailed`, `OutcomeUnknown`.
        """
        began = perf_counter_ns()
        feed = self._feed if feed is None else feed
        if feed != self._feed:
            raise SpecError(
                f"finish epoch {start.epoch} as {feed}", f"it was begun as {self._feed}", "pass the same feed"
            )
        taken, whole = self._gather_receipts(start, receipts)
        live = self.live.apply_receipts(self.log.manifest_log.store, taken)
        whole = replace(whole, outputs=join_outputs(self._owed, whole.outputs))
        call = self._build_call_record(start, whole)
        manifest = self.manifest
        kept = self.log.add_receipt(CommittedEpoch(start.epoch, (call,), None if feed is None else feed.batch))
        if is_other_query(manifest.feed, feed):  # the batch numbers of the earlier query mean nothing now
            kept = (*(replace(each, batch=None) for each in kept[:-1]), kept[-1])
        self.log.publish_version(
            kept,
            live.inventories,
            live.file_names(),
            f"commit of {call.kind}",
            frontier=whole.frontier,
            last=whole.last,
            since=max(whole.since, manifest.since),
            retain=self._retention_span,
            partitions=self.partitions,
            horizons=max_by_name((manifest.horizons, whole.horizons)),
            greatest=max_by_name((manifest.greatest, whole.greatest)),
            feed=advance_feed(manifest.feed, feed),
            fed=record_feed_call(manifest.fed, [name for name, n in whole.rows.items() if n], EVENTS, start.epoch),
        )
        self._past = extend_inventory_history(self.live.parts, live.parts, self._past)
        self.live, self._start, self._owed = live, None, {}
        for name, each in self.heard.items():
            for found in each.add_summary(whole.said.get(name, MessageSummary())):
                warnings.warn(f"messages for {name!r}: {found}", stacklevel=3)
        self.log.finish_epoch(APART)
        figures = whole.figures | {"tasks": len(taken), "commit": (perf_counter_ns() - began) // 1000}
        return EpochResult(
            start.epoch, call.time, whole.frontier, whole.counts, whole.rows, whole.outputs, figures, False
        )

    def _gather_receipts(
        self, start: EpochStart, receipts: Iterable[Receipt]
    ) -> tuple[tuple[Receipt, ...], EpochContribution]:
        """Check the receipts and their files. Returns one receipt for each task, and the sum of these receipts."""
        if start is not self._start and start != self._start:
            raise SpecError(
                f"finish epoch {start.epoch}",
                "it was not begun, or another epoch was begun since",
                "begin it, and pass the start that begin() returns",
            )
        taken, whole = gather_receipts(receipts, start.version.digest, self.cut.stages, self.partitions)
        check_receipt_names(self.cut, taken, folder=self.log.outputs.sink is not None)
        check_files_exist(
            self.log.manifest_log.store, self.log.outputs.sink, start.epoch, taken, set(self.live.inventories)
        )
        return taken, whole

    def publish_connector_positions(self) -> None:
        """Publish the attached sinks and sources if the newest manifest lacks them. O(plan).

        If the plan has columns that the state lacks, this method publishes nothing, and the next epoch publishes the
        sinks and sources. Raises the errors of a commit.
        """
        manifest = self.manifest
        if not self.log.change and (self.log.sinks, self.log.sources) != (manifest.sinks, manifest.sources):
            self.log.publish_version(
                manifest.receipts, manifest.inventories, self.live.file_names(), "sinks have acknowledged"
            )
            self.log.manifest_log.sweep_old_manifests()

    def _build_call_record(self, start: EpochStart, whole: EpochContribution) -> EpochCall:
        """Build the record of the epoch's call."""
        kind: Kind = "push" if self.flow.holds_back else "step"
        time = 0 if self.flow.holds_back else start.time
        if start.closes_all_times:
            kind, time = "advance_to", CLOSED
        digest = digest_call(kind, time, whole.rows, whole.digests)
        figures = whole.figures | {f"{ROWS}{name}": n for name, n in whole.rows.items()}
        if self._owed:
            figures[OWED] = sum(each.rows for each in self._owed.values())
        return EpochCall(kind, time, digest, whole.frontier, whole.counts, whole.outputs, figures)

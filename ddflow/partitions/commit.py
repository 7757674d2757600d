"""Coordinate the epochs of a partitioned state: begin an epoch, check the receipts of its tasks, publish it.

Tasks write files and the driver alone publishes them, so a retried or repeated task changes nothing. A batch of a query
has an id: a new batch is computed, a committed one is answered again, and any other is refused.

>>> kept = (Epoch(7, (), 4), Epoch(8, (), 5))
>>> [find_batch_epoch("shop", Feed("a", 5), Feed("a", batch), kept) for batch in (6, 4)]
[None, Epoch(epoch=7, calls=(), batch=4, digest='', written=None)]
>>> find_batch_epoch("shop", Feed("a", 5), Feed("b", 0), kept)
Traceback (most recent call last):
    ...
ddflow.errors.FeedChanged: give batch 0 of query 'b' to shop: the state is fed by query 'a', whose last batch is 5; ...
>>> find_batch_epoch("shop", Feed("a", 5), Feed("b", 0), kept, adopt=True)
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from shlex import quote
from time import perf_counter_ns
from typing import Final, Literal, Self

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
    StateRefused,
    TimeWentBack,
    WrongMode,
)
from ddflow.partitions.epoch_start import Backfill, EpochStart, StateVersion, compute_usable_memory, find_store_address
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
from ddflow.plan.text.codec import read_step_time_type
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.epochs import QUERY, Epoch, Feed, Kind
from ddflow.storage.feeding import EVENTS, record_feed_call
from ddflow.storage.manifest import PARTITIONS, Epoch as CommittedEpoch, EpochCall, Feed as FeedRecord, Manifest, Output
from ddflow.storage.manifest_log import GRACE
from ddflow.storage.protocol import Store
from ddflow.terminal import format_size
from ddflow.time import CLOSED, INT64, NEVER, format_time


@dataclass(frozen=True)
class DriverOptions:
    """Options of an `EpochDriver`. Raises `SpecError`.

    - ``partitions``: None for as many as the state has, or ``default_partitions`` for a new state.
    - ``outputs``: a folder for Parquet files, as in `Flow.open`.
    - ``grace``: the seconds that a version outlives its successor.
    - ``keep``: the number of epochs that can be replayed.
    - ``memory``: the memory of one task, as in `Flow.open`.
    - ``trust``, ``retain``, ``secret``: as in `Flow.open`.
    - ``checkpoint``: the checkpoint folder of the query that gives batches, for messages.

    >>> DriverOptions(partitions=0)
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: partitions=0: that is not possible; give a whole number from 1 to 65536
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
                    Option(name, given), "that is not possible", f"give a whole number from {least} to {most}"
                )
        check_outputs_path(self.outputs)  # before anything is written
        if (size := self.task_memory) is not None and compute_usable_memory(size) < LEAST:
            raise SpecError(
                f"memory={format_size(size)}",
                "that is too small for a task to work in",
                f"give {format_size(2 * LEAST)} or more",
            )

    @property
    def task_memory(self) -> int | None:
        """Bytes that a task may use."""
        return parse_size(self.memory)

    def check_manifest(self, manifest: Manifest, where: str) -> None:
        """Check that these options fit the manifest of a state.

        Raises `SpecError` for another number of partitions, and `StateRefused` if the times of its steps are not
        integers.
        """
        if not manifest.inventories:  # it has no rows yet
            return
        if (kind := read_step_time_type(manifest.plan, where)) != INT64:
            raise StateRefused(
                f"open {where} on Spark",
                f"the times of its steps are {kind}, and those of Spark's epochs are whole numbers",
                "go on with it in one process; spark_bridge.read reads it as it is",
            )
        if self.partitions not in (None, manifest.partitions):
            found = f"it has {manifest.partitions}, and opening a state does not rewrite it"
            other = f"ddflow rescale {quote(where)} --partitions {self.partitions}, or on Spark spark_bridge.rescale"
            remedy = f"leave it out, or change it first: {other}"
            raise SpecError(f"open {where} with partitions={self.partitions}", found, remedy)


ADOPT: Final = Option("adopt", True)
AGAIN: Final = ErrorText(
    "what the state has seen changes nothing where events have an order (order_by=, ",
    Option("seq"),
    ", or their format's), and bad messages come into <input>.bad a second time",
)
"""Warning about a source that is read again."""


def find_batch_epoch(
    where: str,
    now: Feed | None,
    asked: Feed,
    kept: Iterable[Epoch],
    adopt: bool = False,
    checkpoint: str | None = None,
) -> Epoch | None:
    """Return the epoch that a batch was committed as; None if it is new. Pure; O(epochs kept).

    ``now``: the feed of the state. ``kept``: epochs that can be replayed. ``adopt``: accept another query.
    ``checkpoint``: the checkpoint folder of the asking query, for messages. Raises `FeedChanged` for another query, for
    a query without an id that restarts its numbers, or if its first batches went elsewhere. Raises `EpochSkipped` for a
    batch after a gap or one that is not kept any more, and `SpecError` if ``asked`` is no batch.
    """
    if not isinstance(asked.query, str) or len(asked.query) > QUERY or not _is_batch_number(asked.batch):
        raise SpecError(
            f"give {asked!r} to {where}",
            "that is no batch of a query",
            f"give Feed(query, batch): a text of {QUERY} characters at most, a whole number from 0",
        )
    what = f"give batch {asked.batch} of {_describe_query(asked.query)} to {where}"
    folder = _describe_checkpoint_folder(checkpoint)
    if now is None and asked.batch and not adopt:
        raise FeedChanged(
            what,
            f"no query has fed this state, so the {asked.batch} batches before it went elsewhere: "
            "the checkpoint belongs to another state, or this one was made anew",
            f"give checkpoint= another folder, or delete {folder}, to start from the "
            "beginning; or start with " + ADOPT + ", where the state has those rows",
        )
    if now is None or _is_query_takeover(now, asked, adopt):
        return None
    fed = f"the state is fed by {_describe_query(now.query)}, whose last batch is {now.batch}"
    if now.query and asked.query and now.query != asked.query:
        raise FeedChanged(
            what,
            fed,
            f"start this query, whose checkpoint is {folder}, with a state of its own; "
            "or, where that one's checkpoint is gone for good, with " + ADOPT + ": " + AGAIN,
        )
    if now.inputs and asked.inputs and now.inputs != asked.inputs:
        raise FeedChanged(
            what,
            f"it has rows for {list(asked.inputs)}, and had them for {list(now.inputs)}: its checkpoint says how far "
            "each was read by its place alone",
            f"give frames for {list(now.inputs)}; or give checkpoint= another folder and "
            "start with " + ADOPT + ", from rows that the state has not seen",
        )
    if asked.batch == now.batch + 1:
        return None
    if asked.batch > now.batch + 1:
        raise EpochSkipped(
            what,
            f"{fed}: {asked.batch - now.batch - 1} batches were left out",
            f"restore state and checkpoint as of the same time; or delete {folder} and "
            "start with " + ADOPT + ", which reads the source from its beginning: " + AGAIN,
        )
    found = next((each for each in kept if each.batch == asked.batch), None)
    if found is None and not asked.query and asked.batch == 0:
        raise query_restart_error(where, now, asked, checkpoint)
    if found is None:
        raise EpochSkipped(
            what,
            f"{fed}, and batches that were given before {_describe_oldest_batch(kept)} are not kept",
            "the checkpoint is older than the state: restore both as of the same time; or "
            f"delete {folder} and start with " + ADOPT + ", which reads the source from its beginning: " + AGAIN,
        )
    return found


def query_restart_error(where: str, now: Feed, asked: Feed, checkpoint: str | None = None) -> FeedChanged:
    """Build the error for a query without an id that restarts its batch numbers at 0."""
    return FeedChanged(
        f"give batch {asked.batch} of {_describe_query(asked.query)} to {where}",
        f"batch {asked.batch} was given before with other rows, and the last one was {now.batch}: this "
        "is another query, or its checkpoint was deleted",
        f"restore {_describe_checkpoint_folder(checkpoint)}; or start with " + ADOPT + ": " + AGAIN,
    )


def advance_feed(now: Feed | None, asked: Feed | None) -> Feed | None:
    """Return the feed of a state after a batch, or after an epoch without a batch. Pure."""
    if asked is None or now is None:
        return asked or now
    if is_other_query(now, asked):
        return asked
    return Feed(asked.query or now.query, asked.batch, asked.inputs or now.inputs)


def is_other_query(now: Feed | None, asked: Feed | None) -> bool:
    """Return whether earlier batches belong to another query, so their numbers mean nothing now."""
    if now is None or asked is None:
        return False
    return asked.batch != now.batch + 1 or bool(now.query and asked.query and now.query != asked.query)


def is_query_restart(now: Feed, asked: Feed, epoch: Epoch) -> bool:
    """Return whether a mismatch with a kept epoch means that a query without an id restarted its numbers."""
    return not (now.query and asked.query) and epoch.batch is not None and epoch.batch < now.batch


def _is_query_takeover(now: Feed, asked: Feed, adopt: bool) -> bool:
    """Return whether this is the first batch of a query that takes over from another."""
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
"""Number of files above which a thread deletes them while the tasks of the next epoch run."""


class EpochDriver:
    """The driver of a state's epochs; `open` makes it.

    - ``flow``, ``cut``: the plan and its stages.
    - ``log``: the epochs of the state.
    - ``partitions``: the number of partitions.
    - ``heard``: the knowledge of inputs that take messages.
    - ``growing``: the new parts of the plan, which tasks fill before the next epoch (`begin_backfill`); None for none.

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
        """Open a state, or make a new one. O(bytes of its inventories).

        Raises `PlanChanged`, `StateRefused`, `CorruptState`, the errors of the store, and `SpecError`, also for a
        number of partitions that the state does not have.
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
                    f"{log.change.description}; rows of {moved} are told apart by it, and would be in other partitions",
                    ErrorText("rewrite the state first: ", CommandFix("evolve")),
                )
            return cls(log.flow, log, options)

    @property
    def manifest(self) -> Manifest:
        """Newest manifest of the state that this driver knows."""
        return self.log.manifest_log.manifest

    @property
    def epoch(self) -> int:
        """Number of the last committed epoch."""
        return self.manifest.epoch

    def close(self) -> None:
        """Close the store.  Twice is harmless."""
        self.log.close()

    def committed(
        self, *, epoch: int | None = None, feed: FeedRecord | None = None, adopt: bool = False
    ) -> CommittedEpoch | None:
        """Find the epoch that was committed under a number or for a batch; None if it is the next one. O(epochs kept).

        ``adopt``: take over the batches of another query. Raises `EpochSkipped`, `FeedChanged`, and `SpecError` if both
        ``epoch`` and ``feed`` are passed.
        """
        manifest, where = self.manifest, self.log.manifest_log.store.where
        if feed is not None:
            if epoch is not None:
                raise SpecError(f"epoch={epoch}, feed={feed!r}", "they may contradict each other", "give one of them")
            self._asked = feed
            return find_batch_epoch(where, manifest.feed, feed, manifest.receipts, adopt, self.options.checkpoint)
        return None if epoch is None else self.log.find_committed_epoch(epoch, f"epoch {epoch} of {where}")

    def replayed(self, epoch: CommittedEpoch, rows: Mapping[str, int], digests: Mapping[str, str]) -> EpochResult:
        """Return the result of a committed epoch again, after a check that its rows are the same. O(inputs).

        ``rows``, ``digests``: the counts and digests of all rows, by input. Raises `ReplayMismatch` if they differ, and
        `FeedChanged` if they come from a query without an id that restarted its numbers.
        """
        call = epoch.calls[0]
        found = digest_call(call.kind, call.time, rows, digests)
        if len(epoch.calls) > 1 or found != call.digest:
            now, asked = self.manifest.feed, self._asked
            if now is not None and asked is not None and is_query_restart(now, asked, epoch):
                raise query_restart_error(self.log.manifest_log.store.where, now, asked, self.options.checkpoint)
            more = (
                ", and the plan has other columns since" if self.log.find_past_schemas(epoch.epoch) is not None else ""
            )
            raise ReplayMismatch(
                f"give epoch {epoch.epoch} of {self.log.manifest_log.store.where} again",
                f"it was committed of rows with digest {call.digest}, these have {found}{more}",
                "give the same rows again, or go on with the next epoch",
            )
        return EpochResult(
            epoch.epoch, call.time, call.frontier, call.counts, dict(rows), call.outputs, call.figures, True
        )

    def begin(
        self, *, epoch: int | None = None, feed: FeedRecord | None = None, close: bool = False, adopt: bool = False
    ) -> EpochStart:
        """Begin the next epoch, and return the start for its tasks. O(partitions). Forgets an unfinished epoch.

        ``epoch``, ``feed``, ``adopt``: as in `committed`. ``close``: close all times, in hold-back mode.

        Raises as `committed` does; `EpochSkipped` for a committed epoch; `Fenced`; `WrongMode` for ``close`` in epoch
        mode; `TimeWentBack` when there are no more times.
        """
        manifest, where = self.manifest, self.log.manifest_log.store.where
        if (found := self.committed(epoch=epoch, feed=feed, adopt=adopt)) is not None:
            raise EpochSkipped(
                f"begin epoch {found.epoch} of {where}",
                "it is committed",
                "ask for it with committed(), and tell it again with replayed()",
            )
        if close and not self.flow.holds_back:
            raise WrongMode("close=True", "the flow is in epoch mode: its inputs name no time column", "leave it out")
        assert self.growing is None, "what is new was not made"
        self.log.manifest_log.check_still_newest()
        number, time = self.epoch + 1, max(self.epoch, manifest.last) + 1
        if time >= CLOSED and not self.flow.holds_back:
            raise TimeWentBack(
                f"begin epoch {number} of {where}",
                f"its last time is {format_time(manifest.last)}",
                "there is none after it: make a new state",
            )
        self._feed, self._start = feed, self._build_epoch_start(time, CLOSED if close else self._find_frontier())
        return self._start

    def _build_epoch_start(self, time: int, to: int, backfill: Backfill | None = None) -> EpochStart:
        """Build the start of the next epoch."""
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
            inventories=self.live.parts,
            folder=self.log.outputs.sink_path,
            retain=self._retention_span,
            memory=self.options.task_memory,
            past=self._past,
            backfill=backfill,
        )

    def begin_backfill(self) -> EpochStart:
        """Build the start of the tasks that fill the new parts of the plan.

        Call it before the next epoch if ``growing`` is not None.

        O(files), and O(bytes) if the new plan partitions the rows differently. Raises `Fenced`, `StorageFull`,
        `StorageFailed`.
        """
        assert self.growing is not None, "nothing is new"
        log = self.log.manifest_log
        log.check_still_newest()
        parts = self.growing.write_inventories(self.options.trust, self.options.task_memory)
        self.live = LiveFiles.load(log.store, parts, self.cut.stages, self.partitions)
        self._start = self._build_epoch_start(self.manifest.last, self.manifest.frontier, self.growing.new)
        return self._start

    def finish_backfill(self, start: EpochStart, receipts: Iterable[Receipt]) -> None:
        """Adopt the state that these tasks made, from one receipt a task. The next epoch publishes it.

        Raises as `finish` does.
        """
        taken, whole = self._gather_receipts(start, receipts)
        self.live = self.live.apply_receipts(self.log.manifest_log.store, taken)
        self.growing, self._start, self._owed = None, None, whole.outputs

    @property
    def _retention_span(self) -> int:
        """Span of history to keep before the last time: the option, or else the span in the manifest."""
        return self.manifest.retain if self.options.retain is None else self.options.retain

    def _find_frontier(self) -> int:
        """Return the frontier that the rows of earlier epochs allow."""
        manifest, least = self.manifest, CLOSED
        for name, input in self.flow.inputs.items():
            seen = manifest.greatest.get(name, NEVER)
            if input.spec.lateness is None or seen == NEVER:
                return manifest.frontier
            least = min(least, max(seen - input.spec.lateness, NEVER))
        return max(least, manifest.frontier)

    def finish(self, start: EpochStart, receipts: Iterable[Receipt], *, feed: FeedRecord | None = None) -> EpochResult:
        """Publish an epoch, from one receipt a task. O(receipts + files of the state).

        Raises `MissingReceipts`, `ReceiptsDisagree`, `SpecError` for receipts of another epoch, and `StateRefused` if
        files are missing. Nothing is committed then, and you can begin the epoch again. Raises as a commit does:
        `Fenced`, `StorageFull`, `StorageFailed`, `OutcomeUnknown`.
        """
        began = perf_counter_ns()
        feed = self._feed if feed is None else feed
        if feed != self._feed:
            raise SpecError(f"finish epoch {start.epoch} as {feed}", f"it was begun as {self._feed}", "give the same")
        taken, whole = self._gather_receipts(start, receipts)
        live = self.live.apply_receipts(self.log.manifest_log.store, taken)
        whole = replace(whole, outputs=join_outputs(self._owed, whole.outputs))
        call = self._build_call_record(start, whole)
        manifest = self.manifest
        kept = self.log.add_receipt(CommittedEpoch(start.epoch, (call,), None if feed is None else feed.batch))
        if is_other_query(manifest.feed, feed):  # then the batch numbers of the other query mean nothing
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
        """Check the receipts, one a task, and their files. Return them and their sum."""
        if start is not self._start and start != self._start:
            raise SpecError(
                f"finish epoch {start.epoch}",
                "it was not begun, or another was begun since",
                "begin it, and give what that returns",
            )
        taken, whole = gather_receipts(receipts, start.version.digest, self.cut.stages, self.partitions)
        check_receipt_names(self.cut, taken, folder=self.log.outputs.sink is not None)
        check_files_exist(
            self.log.manifest_log.store, self.log.outputs.sink, start.epoch, taken, set(self.live.inventories)
        )
        return taken, whole

    def publish_connector_positions(self) -> None:
        """Publish the attached sinks and sources if the newest manifest lacks them. O(plan). Raises as a commit does.

        If the plan has columns that the state lacks, the next epoch publishes them instead.
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

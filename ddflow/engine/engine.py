"""The engine: an opened plan that takes steps, answers reads, and runs sources and sinks; and `Flow`, which opens it.

Guarantees: a call happens as a whole or not at all, because everything is computed before anything changes. On durable
state, calls become epochs. Limits: one thread writes at a time. An interrupt during a change of state ends the engine.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open() as engine:
...     out = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
...     print(out["by_city"].to_pylist(), out.verdicts)
[{'city': 'Bern', 'count': 2, '_time': 1, '_diff': 1}] applied 2
"""

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Literal

from ddflow.columns.hashing import Secret
from ddflow.columns.threads import Threads
from ddflow.connectors.api import Source, TableSink
from ddflow.dataflow.budget import MemoryBudget, parse_size
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.dataflow.inflow import map_rows_to_inputs
from ddflow.dataflow.result import Step
from ddflow.dataflow.side_outputs import check_verdict_columns
from ddflow.engine.calls import EngineCalls
from ddflow.engine.commits import CallRequest, EpochCommitter
from ddflow.engine.compact import compact
from ddflow.engine.evolve import evolve_engine
from ddflow.engine.read.live_view import LiveRows, Watch
from ddflow.engine.read.reads import Reading
from ddflow.engine.replace import AbsenceLimit, choose_step_time, replace_rows
from ddflow.engine.run.kept_epochs import EngineEpochs
from ddflow.engine.run.options import RunOptions
from ddflow.engine.run.report import RunDone
from ddflow.engine.run.run import RunLoop
from ddflow.engine.run.sync import Synced, detach_connectors, sync_targets
from ddflow.errors import SpecError
from ddflow.metrics import LOG, Look
from ddflow.plan.evolve import share_join_arrangements
from ddflow.plan.options import EngineOptions, accept_keyword_options
from ddflow.plan.plan import Plan
from ddflow.plan.text.explain import Explaining, PlanDiagram, PlanExplanation, render_html, render_plan
from ddflow.plan.verbs.family import ForeignVerbHints
from ddflow.storage.closing import Closing
from ddflow.time import CLOSED, Time, time_to_int64


def freeze_plan(flow: Plan, options: EngineOptions) -> Plan:
    """Freeze the plan. Raises `SpecError` if it has no input or no output, or cannot list its verdicts."""
    if not flow.inputs or not flow.outputs:
        raise SpecError(
            "open a flow",
            f"it has {len(flow.inputs)} inputs and {len(flow.outputs)} outputs",
            "give it at least one of each: flow.upserts(...), flow.output(...)",
        )
    if options.verdicts == "rows":
        for input in flow.inputs.values():
            check_verdict_columns(input.bound)
    return flow.frozen()


def make_dataflow(flow: Plan, options: EngineOptions, durable: EpochCommitter | None) -> Dataflow:
    """Make an empty dataflow. ``durable``: the committer of durable state; None for state in memory."""
    lists, threads, memory = (
        options.verdicts == "rows",
        Threads.from_option(options.threads),
        parse_size(options.memory),
    )
    secret = (options.secret or Secret.fresh()) if durable is None else durable.hash_secret
    budget = MemoryBudget(memory, options.spill, None if durable is None else durable.log.manifest_log.store)
    if durable is not None and budget.can_spill:
        budget.home = durable.batch_store
    retain = 0 if durable is None else durable.log.manifest_log.manifest.retain
    retain = retain if options.retain is None else min(options.retain, CLOSED)
    return Dataflow(flow, Graph(flow, secret, lists, threads), budget, lists, retain, threads)


def recover_dataflow(durable: EpochCommitter, dataflow: Dataflow) -> None:
    """Fill a dataflow with a state. O(bytes of the state). Raises `CorruptState`, which names the file."""
    began = perf_counter()
    dataflow.owed = durable.recover_dataflow(dataflow)
    where, took = durable.log.manifest_log.store.where, (perf_counter() - began) * 1e3
    LOG.info("opened %s at epoch %d in %.1f ms", where, durable.log.epoch, took)


class Engine(Reading, Closing):
    """The engine that runs a flow. `Flow.open` makes it and has its options; `Reading` has its reads.

    Use it in a ``with``. One thread at a time may write; a second one gets `ConcurrentUse`. Any thread may read. After
    `close`, a failed commit or an interrupted step, calls raise `EngineClosed`.
    """

    def __init__(self, flow: Plan, options: EngineOptions) -> None:
        flow = freeze_plan(flow, options)
        self.durable = EpochCommitter.open(flow, options) if options.state is not None else None
        try:
            flow = share_join_arrangements(flow) if self.durable is None else self.durable.log.flow
            super().__init__(make_dataflow(flow, options, self.durable))
            if self.durable is not None:
                recover_dataflow(self.durable, self.dataflow)
        except BaseException:
            if self.durable is not None:
                self.durable.close()
            raise
        self.calls = EngineCalls(self.dataflow, self.durable, options.metrics, options.commit_every)

    def close(self) -> None:
        """Free all state in memory. A second call does nothing.

        Calls that wait for ``commit_every="50ms"`` are committed first; with None, uncommitted calls are lost. A `run`
        on another thread is stopped as by `stop`, and this call waits for it.
        """
        with (
            self.dataflow.guard.end_and_prevent_runs("close", self.stop),
            self.dataflow.guard.lock_in_any_state("close"),
        ):
            self.calls.close()

    @property
    def epoch(self) -> int:
        """The number of the last committed epoch, an int: 0 before the first, and for state in memory."""
        return self.calls.epoch

    def step(self, inputs: Any, time: Time | None = None, *, epoch: int | None = None) -> Step:
        """Take in rows of any inputs as one epoch, stamped ``time``. Epoch mode only.

        Parameters
        ----------
        inputs : mapping of str to table, or table
            By input, a path or anything that speaks Arrow. With one input, its rows suffice.
        time : int, date, datetime or str, optional
            The ``_time`` of the updates, above the last step's. By default the next number, 1 at first. The first step
            sets the type of times: int64, dates, or timestamps of microseconds. Dates and timestamps have no default.
        epoch : int, optional
            The number of the epoch, on durable state. A replayed epoch or ``time`` returns its first result. A call
            without both is never a replay.

        Returns
        -------
        Step
            The updates of each output, and the verdicts.

        Raises
        ------
        WrongMode, TimeWentBack
            In hold-back mode; for a ``time`` not above the last step's.
        NotArrow, SchemaMismatch, NullKey
            For rows that do not fit the inputs; for a missing time, or one of another type than earlier times.
        TieRefused, BudgetExceeded, CountOverflow
            If a rule, the budget or an operator refuses the step. Operators raise further errors. Nothing changes then.
        ReplayMismatch, EpochSkipped
            On durable state, for rows that differ from the committed ones, or an epoch that is neither the next nor
            kept.

        Notes
        -----
        O(n) expected, for n rows.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.lock_for_write("step"):
            calls.check_call_mode("step", holds_back=False)
            inputs = map_rows_to_inputs(inputs, dataflow.admissions)
            at = choose_step_time(calls, "step", time, epoch)
            asked = CallRequest("step", at, time_type=dataflow.time_type)
            return calls.perform_call(asked, epoch, inputs, partial(dataflow.step, time=at))

    def push(self, inputs: Any, *, epoch: int | None = None) -> Step:
        """Take in rows, which wait until their times close. Hold-back mode only.

        Bad and late rows get their verdicts at once.

        Parameters
        ----------
        inputs, epoch
            As in `step`.

        Returns
        -------
        Step
            The updates of the times that ``lateness=`` closes, and the verdicts.

        Raises
        ------
        WrongMode, LateEvent
            In epoch mode; for an event behind the frontier under ``late="error"``.
        DdflowError
            The errors of `step`.

        Notes
        -----
        O(n), for n rows.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.lock_for_write("push"):
            calls.check_call_mode("push", holds_back=True)
            inputs = map_rows_to_inputs(inputs, dataflow.admissions)
            return calls.perform_call(CallRequest("push", 0), epoch, inputs, dataflow.push)

    def advance_to(self, frontier: Time, *, epoch: int | None = None) -> Step:
        """Close the times below ``frontier``. Hold-back mode only.

        Parameters
        ----------
        frontier : int, date, datetime or str
            An int64 in the unit of the time column, or a day or moment of its type; `CLOSED` closes all times.
        epoch : int, optional
            As in `step`.

        Returns
        -------
        Step
            The updates of the closed times, and the verdicts of their events.

        Raises
        ------
        WrongMode, TimeWentBack
            In epoch mode; for a ``frontier`` below the current one.
        TieRefused
            For a tie under ``tie="error"``; on durable state, also the errors of `step`.

        Notes
        -----
        O(n) expected, for n released events.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.lock_for_write("advance_to"):
            calls.check_call_mode("advance_to", holds_back=True)
            to = time_to_int64(f"advance to {frontier!r}", frontier, CLOSED, dataflow.time_type)
            asked = CallRequest("advance_to", to, time_type=dataflow.time_type)
            return calls.perform_call(asked, epoch, {}, partial(dataflow.advance, to=to))

    def flush(self) -> int:
        """Commit the calls since the last commit as one epoch, state and outputs together.

        With ``commit_every="call"``, every call has done so already.

        Returns
        -------
        int
            The number of the last committed epoch.

        Raises
        ------
        SpecError
            If the state is not durable.
        Fenced, StorageFull, StorageFailed, OutcomeUnknown
            If another writer has committed; if the commit failed; if it may have happened. Open the state again then.

        Notes
        -----
        O(what changed).
        """
        with self.dataflow.guard.lock_for_write("flush"):
            return self.calls.flush()

    def replace(
        self,
        name: Any,
        table: Any = None,
        time: Time | None = None,
        scope: str | None = None,
        *,
        order: Any = None,
        max_absent: int | str | None = None,
        allow_empty: bool = False,
        epoch: int | None = None,
    ) -> Step:
        """Replace the contents of an input by ``table``, from ``time`` on. Returns the differences. Epoch mode only.

        The rows of ``table`` win over any held order. Keys in the scope that ``table`` lacks are deleted, and counted
        as ``verdicts.absent``. A missing column is null, with a warning; under a merge it keeps its values.

        Parameters
        ----------
        name : str
            The input. Or ``{name: table}``, which replaces several in one step; with one input, its rows suffice.
        table : table
            A path or anything that speaks Arrow. A reader is consumed as a stream; 8 or 16 bytes a row stay in memory.
        time, epoch
            As in `step`.
        scope : str, optional
            SQL over the row's columns. Only rows within it are replaced, and all rows of ``table`` must be in it.
        order : mapping or scalar, optional
            The order of the deletions, by column of ``order_by`` and ``seq``. By default the greatest in the table.
        max_absent : int or str, optional
            The most keys that may be deleted, as a number or a share of the held keys: 100, "50%".
        allow_empty : bool
            Whether a ``table`` without rows may delete all keys.

        Raises
        ------
        DuplicateKeys, OutOfScope, TooManyAbsent, EmptyContents
            If the table has a key twice, rows outside the scope, too few of the held keys, or no rows.
        ExpressionError, SpecError
            For a bad scope or order.
        DdflowError
            The errors of `step`. Nothing changes then.

        Notes
        -----
        O(n + k), for n rows and k held keys.
        """
        return replace_rows(
            self.calls, "replace", name, table, time, scope, order, epoch, AbsenceLimit(max_absent, allow_empty)
        )

    def restate(
        self,
        name: Any,
        events: Any = None,
        time: Time | None = None,
        *,
        order: Any = None,
        allow_empty: bool = False,
        epoch: int | None = None,
    ) -> Step:
        """Rebuild an input from ``events``, its corrected history. Returns the differences. Epoch mode only.

        Keys then hold the orders of the winners among these events. Keys without an event are deleted, as in `replace`.

        Parameters
        ----------
        name, time, epoch
            As in `replace`.
        events : table
            Anything that speaks Arrow. A reader is consumed as a stream.
        order : mapping or scalar, optional
            As in `replace`. By default the greatest among the events.
        allow_empty : bool
            Whether ``events`` without rows may delete all keys.

        Returns
        -------
        Step
            The differences, and the verdicts.

        Raises
        ------
        DdflowError
            The errors of `replace`, except `DuplicateKeys` and `OutOfScope`.

        Notes
        -----
        O(n + k), for n events and k held keys.
        """
        return replace_rows(
            self.calls, "restate", name, events, time, None, order, epoch, AbsenceLimit(empty=allow_empty)
        )

    def evolve(self, columns: Any) -> None:
        """Add columns to inputs, and widen types, between two calls. The next commit publishes them.

        New columns come last and are null in all existing rows. Integers, floats and text may become wider. Outputs
        that pass all columns grow with their input; projections and groups do not.

        Parameters
        ----------
        columns : schema or mapping
            A schema or ``{column: type}``; for several inputs ``{input: columns}``. Other columns do not change.

        Raises
        ------
        SpecError, PlanChanged
            For a type that is not wider or would rewrite state (`ddflow.evolve`). For a new name close to another
            column's, which may be misspelled: declare it in the flow and open that instead. While calls are not
            committed.

        Notes
        -----
        O(rows) of the columns that widen, of all rows if a column is new.
        """
        evolve_engine(self.calls, columns)

    def compact(self, forget: bool = False) -> None:
        """Merge each arrangement into one run, and publish the state as another version of the same epoch.

        Parameters
        ----------
        forget : bool
            Also delete history up to the last closed time, and every byte of deleted rows. Earlier epochs can then not
            be replayed, and earlier versions not read.

        Raises
        ------
        SpecError
            While calls are not committed, or new outputs have not returned their rows. With ``forget``, also while
            readers are open or sinks lag.

        Notes
        -----
        O(state).
        """
        compact(self.calls, forget)

    def run(
        self,
        sources: Mapping[str, Source] | None = None,
        sinks: Mapping[str, TableSink] | None = None,
        *,
        interval: str = "1s",
        rows: int | None = None,
        until: Any = None,
        lateness: Any = None,
        idle: str | None = None,
        sink_backlog: str | int = "1GB",
        give_up_after: str | None = "10min",
        room: str | int = "64MB",
        evolve: Literal["add", "stop"] = "add",
        max_absent: int | str | None = None,
        on_epoch: Callable[[Step], object] | None = None,
    ) -> RunDone:
        """Follow sources, commit their rows together with their positions, and deliver each epoch to the sinks.

        Parameters
        ----------
        sources : mapping of str to Source
            By input, such as ``dd.sources.files("landing/*.csv", follow=True)``.
        sinks : mapping of str to TableSink
            By output, such as ``dd.sinks.duckdb("shop.duckdb", "by_city")``. They need a durable state.
        interval : str
            How long rows are gathered for an epoch.
        rows, room : int, and str or int
            The number of rows, and the approximate bytes, after which an epoch ends earlier.
        until : str or datetime, optional
            The duration or the end. By default when all sources end, or after an epoch at `stop` or a signal.
        lateness : int or str, optional
            In hold-back mode, how far events may lag the greatest time seen, unless an input's spec sets it.
        idle : str, optional
            In hold-back mode, the silence after which a source no longer holds the frontier.
        sink_backlog : str or int
            Bytes of updates that may wait for a sink (or 10,000 epochs). Above that, no more input is taken.
        give_up_after : str, optional
            How long ddflow retries a source or a sink that fails; None: without end.
        evolve : {"add", "stop"}
            Whether to add a new column of a source after an epoch, or to end the run.
        max_absent : int or str, optional
            The most keys that full contents of a source may delete, 100 or ``"50%"``, as in `replace`.
        on_epoch : callable, optional
            Called with the `Step` of each epoch, on this thread, after its commit. An error in it ends the run.

        Returns
        -------
        RunDone
            Its counts, and the reason for its end.

        Raises
        ------
        SpecError
            For an unknown name, an invalid option, or an output without the key that a mode needs.
        SinkRefused, SinkAhead
            For a target that this state cannot write, or one with an epoch of another history.
        SourceFailed, SinkFailed
            For a failure that lasted ``give_up_after``; the state is complete.
        SourceChanged, SchemaMismatch, DdflowError
            For a source that has changed; for a new or wider column; the errors of `step` and `evolve`.

        Notes
        -----
        A state keeps updates for a sink until you `detach` it. You may open the state without the columns that a run
        added.
        """
        waits = lateness, idle, sink_backlog, give_up_after
        options = RunOptions(interval, rows, until, *waits, room, evolve, max_absent)
        return RunLoop(self, sources or {}, sinks or {}, options, shows=True, on_epoch=on_epoch).run()

    def stop(self) -> None:
        """End the current run after its epoch, which it commits; without a run, the next one returns at once.

        You may call it from any thread and from a signal handler, because it does not wait. `close` waits.
        """
        self.calls.stopping = True
        self.calls.end_run()

    def sync(
        self,
        sinks: Mapping[str, TableSink],
        *,
        adopt: bool = False,
        dry: bool = False,
        look: Look = lambda rows: None,
    ) -> dict[str, Synced]:
        """Make the targets equal to the outputs as of the last epoch, by writing the differences.

        Parameters
        ----------
        sinks : mapping of str to TableSink
            The sink of each output.
        adopt : bool
            Whether to take over a table without a record, or with the record of another state.
        dry : bool
            Whether to report the differences only.
        look : callable
            Called with the number of rows read and written since its last call, for progress.

        Returns
        -------
        dict of str to Synced
            By output, how many rows of the table were deleted, changed and added.

        Raises
        ------
        SinkRefused
            For a table of another state, without ``adopt``, or of another shape; no row of any target is changed.
        SinkFailed, SpecError
            As in `run`; the error lists the targets that were changed before the failure.

        Notes
        -----
        O(rows of the outputs and the tables). All rows that differ are in memory.
        """
        self.calls.commit_waiting_calls("sync")
        return sync_targets(EngineEpochs(self.calls, "sync"), sinks, adopt, dry, look)

    def detach(self, *names: str) -> None:
        """Detach sinks, so that the state keeps no updates for them, and sources with their positions.

        Parameters
        ----------
        *names : str
            Their names in `run`; ``sink:NAME`` or ``source:NAME`` if a sink and a source share a name.

        Raises
        ------
        SpecError
            For a name that is not attached, or one that a sink and a source share.

        Notes
        -----
        Target tables do not change. A source attached later is read from its beginning. O(what changed).
        """
        self.calls.commit_waiting_calls("detach")
        detach_connectors(EngineEpochs(self.calls, "detach"), names)

    def watch(self, name: str, *, rows: int = 10, by: str | None = None, every: float = 0.2) -> Watch:
        """Show an output in a notebook, as a table that follows each call, also within `run`.

        Parameters
        ----------
        name : str
            An output or an input.
        rows : int
            The number of rows to show.
        by : str, optional
            The column that orders them, such as ``"revenue desc"``; by default the first one.
        every : float
            The least number of seconds between two drawings. Drawing takes a tenth of the time at most.

        Returns
        -------
        Watch
            The table. `Watch.close` ends it, and the engine's `close` too.

        Raises
        ------
        NotReadable
            For an unknown name, or differences that are not kept.
        SpecError
            For an unknown column.

        Notes
        -----
        O(rows of the output) a drawing.
        """
        self.node(name)
        watch = Watch(self.calls.dataflow, LiveRows(name, by, rows), every)
        self.calls.listeners.append(watch)
        self.calls.before_close.append(watch.close)
        return watch

    def _check_invariants(self) -> None:
        """Assert the invariants of the dataflow."""
        self.dataflow._check_invariants()


class Flow(Plan, Explaining, ForeignVerbHints):
    """A plan under construction, and `open`, which runs it.

    Attributes
    ----------
    inputs : dict of str to Input
        The inputs, by name.
    outputs : dict of str to Collection
        The outputs, by name.
    """

    _shown = "a flow"
    _instead = {
        name: f"with flow.open() as engine: engine.{name}(...)"
        for name in ("step", "push", "run", "read", "replace", "evolve", "why", "watch", "stats")
    } | {"source": "upserts(name, schema, spec)", "input": "upserts(name, schema, spec)", "sink": "output(name, rows)"}

    @classmethod
    def of(cls, plan: Plan) -> "Flow":
        """Make a flow of a plan, such as a decoded one, so that you can open it.

        Parameters
        ----------
        plan : Plan
            The plan. Later additions to the flow do not change it.

        Returns
        -------
        Flow
            A flow with the same collections.

        Notes
        -----
        O(nodes of the plan).
        """
        flow = cls()
        flow.nodes, flow.inputs, flow.outputs = list(plan.nodes), dict(plan.inputs), dict(plan.outputs)
        return flow

    def _render_plan(self, name: str | None, format: str) -> PlanExplanation | PlanDiagram:
        return render_plan(self, name, format)

    def _repr_html_(self) -> str:
        """Render the plan for a notebook."""
        return render_html(self)

    @accept_keyword_options(EngineOptions)
    def open(self, options: EngineOptions) -> Engine:
        """Make an engine that runs this plan. Use it in a ``with``."""
        return Engine(self, options)

"""Define `Engine`, which runs an opened plan, and `Flow`, which declares and opens a plan.

Guarantees: a call takes effect completely or not at all, because the engine computes all results before it changes any
state. On durable state, each commit of one or more calls is an epoch. Limits: only one thread may write at a time. If a
call is interrupted while it changes the state, the engine refuses all later calls.

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
    """Freeze the plan.

    Raises `SpecError` if there is no input or no output, or if a key column has a name that verdict rows reserve.
    """
    if not flow.inputs or not flow.outputs:
        raise SpecError(
            "open a flow",
            f"it has {len(flow.inputs)} inputs and {len(flow.outputs)} outputs",
            "declare at least one of each: flow.upserts(...), flow.output(...)",
        )
    if options.verdicts == "rows":
        for input in flow.inputs.values():
            check_verdict_columns(input.bound)
    return flow.frozen()


def make_dataflow(flow: Plan, options: EngineOptions, durable: EpochCommitter | None) -> Dataflow:
    """Make an empty dataflow. ``durable``: commits the calls to durable state; None for state in memory."""
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
    """Load the durable state into an empty dataflow. O(bytes). Raises `CorruptState`, which names the damaged file."""
    began = perf_counter()
    dataflow.owed = durable.recover_dataflow(dataflow)
    where, took = durable.log.manifest_log.store.where, (perf_counter() - began) * 1e3
    LOG.info("opened %s at epoch %d in %.1f ms", where, durable.log.epoch, took)


class Engine(Reading, Closing):
    """An engine runs a flow. `Flow.open` makes an engine. The base class `Reading` has the methods that read.

    Use an engine in a ``with`` statement, which closes the engine at the end. Only one thread may write at a time. A
    second thread that writes gets `ConcurrentUse`. Any thread may call read methods. Calls raise `EngineClosed` after
    `close`, after a failed commit, and after a step that was interrupted.
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

        Before the engine closes, it commits the calls that wait for the timer of an option like
        ``commit_every="50ms"``. With ``commit_every=None``, uncommitted calls are lost. `close` also stops a `run` on
        another thread, as `stop` does, and waits until the run has ended.
        """
        with (
            self.dataflow.guard.end_and_prevent_runs("close", self.stop),
            self.dataflow.guard.lock_in_any_state("close"),
        ):
            self.calls.close()

    @property
    def epoch(self) -> int:
        """The number of the last committed epoch, an int.

        The number is 0 before the first commit, and always 0 for state in memory.
        """
        return self.calls.epoch

    def step(self, inputs: Any, time: Time | None = None, *, epoch: int | None = None) -> Step:
        """Ingest rows of any inputs as one epoch. The updates get ``time`` as their time. Epoch mode only.

        Parameters
        ----------
        inputs : mapping of str to table, or table
            A path or any Arrow data for each input name. If the flow has one input, you may pass only its rows.
        time : int, date, datetime or str, optional
            The ``_time`` of the updates, greater than the time of the last step. By default the next number, starting
            at 1. The first step sets the type of times: int64, dates, or timestamps of microseconds. Dates and
            timestamps have no default.
        epoch : int, optional
            The number of the epoch, on durable state. A call with a committed epoch or ``time`` is a replay, and
            returns the first result again. A call with neither argument is never a replay.

        Returns
        -------
        Step
            The updates of each output, and the verdicts.

        Raises
        ------
        WrongMode, TimeWentBack
            If the flow is in hold-back mode; for a ``time`` that is not greater than the time of the last step.
        NotArrow, SchemaMismatch, NullKey
            For rows that do not fit the inputs; for a missing time, or a time of another type than earlier times.
        TieRefused, BudgetExceeded, CountOverflow
            If a tie rule, the memory budget or an operator refuses the step. Operators raise further errors. The state
            does not change then.
        ReplayMismatch, EpochSkipped
            On durable state, for rows that differ from the committed rows, or for an epoch that is neither the next one
            nor kept.

        Notes
        -----
        O(n) expected, for n rows.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.lock_for_write("step"):
            if dataflow.holds_back:
                calls.check_call_mode("step", holds_back=False)
            inputs = map_rows_to_inputs(inputs, dataflow.admissions)
            at = choose_step_time(calls, "step", time, epoch)
            asked = CallRequest("step", at, time_type=dataflow.time_type)
            return calls.perform_call(asked, epoch, inputs, partial(dataflow.step, time=at))

    def push(self, inputs: Any, *, epoch: int | None = None) -> Step:
        """Ingest rows as events, which stay pending until their times close. Hold-back mode only.

        Bad and late rows get their verdicts immediately.

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
            If the flow is in epoch mode; for an event before the frontier if the spec has ``late="error"``.
        DdflowError
            The errors of `step`.

        Notes
        -----
        O(n), for n rows.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.lock_for_write("push"):
            if not dataflow.holds_back:
                calls.check_call_mode("push", holds_back=True)
            inputs = map_rows_to_inputs(inputs, dataflow.admissions)
            return calls.perform_call(CallRequest("push", 0), epoch, inputs, dataflow.push)

    def advance_to(self, frontier: Time, *, epoch: int | None = None) -> Step:
        """Close all times below ``frontier``. Hold-back mode only.

        Parameters
        ----------
        frontier : int, date, datetime or str
            An int64 in the unit of the time column, or a date or timestamp of its type. `CLOSED` closes all times.
        epoch : int, optional
            As in `step`.

        Returns
        -------
        Step
            The updates of the closed times, and the verdicts of their events.

        Raises
        ------
        WrongMode, TimeWentBack
            If the flow is in epoch mode; for a ``frontier`` below the current frontier.
        TieRefused
            For a tie under ``tie="error"``; on durable state, also the errors of `step`.

        Notes
        -----
        O(n) expected, where n is the number of released events.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.lock_for_write("advance_to"):
            if not dataflow.holds_back:
                calls.check_call_mode("advance_to", holds_back=True)
            to = time_to_int64(f"advance to {frontier!r}", frontier, CLOSED, dataflow.time_type)
            asked = CallRequest("advance_to", to, time_type=dataflow.time_type)
            return calls.perform_call(asked, epoch, {}, partial(dataflow.advance, to=to))

    def flush(self) -> int:
        """Commit the calls since the last commit as one epoch, with their state and outputs.

        With ``commit_every="call"``, there is nothing to commit, because every call commits itself.

        Returns
        -------
        int
            The number of the last committed epoch.

        Raises
        ------
        SpecError
            If the state is not durable.
        Fenced, StorageFull, StorageFailed, OutcomeUnknown
            `Fenced` if another writer has committed, the storage errors if the commit failed, and `OutcomeUnknown` if
            the commit may have happened. Open the state again after any of these errors.

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
        """Replace the contents of an input by ``table``, starting at ``time``, and return the differences.

        Epoch mode only. A row of ``table`` replaces the held row of its key, even if the held row has a greater order.
        If ``table`` lacks a key that is in the scope, the key is deleted and counted in ``verdicts.absent``. A missing
        column becomes null, and a warning is given. If the input has a merge, a missing column keeps its old values.

        Parameters
        ----------
        name : str
            The input. Or ``{name: table}``, which replaces several inputs in one step. If the flow has one input, you
            may pass only its rows.
        table : table
            A path or any Arrow data. A reader is consumed as a stream; 8 or 16 bytes for each row stay in memory.
        time, epoch
            As in `step`.
        scope : str, optional
            A SQL condition over the row's columns. Only rows that meet it are replaced, and all rows of ``table`` must
            meet it.
        order : mapping or scalar, optional
            The order of the deletions: a value for each column of ``order_by`` and ``seq``. By default the greatest
            order in the table.
        max_absent : int or str, optional
            The most keys that the call may delete, as a number or a share of the held keys: 100, "50%".
        allow_empty : bool
            Whether a ``table`` without rows may delete all keys.

        Raises
        ------
        DuplicateKeys, OutOfScope, TooManyAbsent, EmptyContents
            If the table has a key twice, rows outside the scope, too few of the held keys, or no rows.
        ExpressionError, SpecError
            For an invalid scope or order.
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
        """Replace the history of an input by ``events``, its corrected history, and return the differences.

        Epoch mode only. After the call, each key has the row and the order of its winning event. A key that has no
        event in ``events`` is deleted, as in `replace`.

        Parameters
        ----------
        name, time, epoch
            As in `replace`.
        events : table
            Any Arrow data. A reader is consumed as a stream.
        order : mapping or scalar, optional
            As in `replace`. By default the greatest order among the events.
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
        """Add columns to inputs, and widen the types of columns, between two calls.

        The next commit publishes these changes to the plan. New columns are placed after the other columns, and are
        null in all existing rows. Columns of integers, floats and text can be widened. If an output passes on all
        columns of an input, the output gets the new columns. Outputs of projections and groups do not get new columns.

        Parameters
        ----------
        columns : schema or mapping
            A schema or ``{column: type}``; for several inputs ``{input: columns}``. Columns that you do not list do not
            change.

        Raises
        ------
        SpecError, PlanChanged
            For a type that is not wider, or that needs a rewrite of the state (`ddflow.evolve`). For a new name that is
            close to the name of another column, because it may be misspelled: declare the column in the flow, and open
            that flow instead. Also if calls are not committed.

        Notes
        -----
        O(rows) for the columns that widen. If a column is new, O(rows) for all columns.
        """
        evolve_engine(self.calls, columns)

    def compact(self, forget: bool = False) -> None:
        """Merge each arrangement into one run. Publish the state as a new version of the last epoch.

        Parameters
        ----------
        forget : bool
            Also delete history up to the last closed time, and every byte of deleted rows. After that, you cannot
            replay earlier epochs or read earlier versions.

        Raises
        ------
        SpecError
            If calls are not committed, or if no step has returned the rows of new outputs yet. With ``forget``, also if
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
        clock: str | None = None,
        on_epoch: Callable[[Step], object] | None = None,
    ) -> RunDone:
        """Follow sources, commit their rows together with their positions, and deliver each epoch to the sinks.

        Parameters
        ----------
        sources : mapping of str to Source
            A source for each input name, such as ``dd.sources.files("landing/*.csv", follow=True)``.
        sinks : mapping of str to TableSink
            A sink for each output name, on durable state: ``dd.sinks.duckdb("shop.duckdb", "by_city")``.
        interval : str
            How long the run gathers rows for an epoch.
        rows, room : int, and str or int
            The number of rows, and the approximate bytes, after which an epoch ends earlier.
        until : str or datetime, optional
            The duration or the end. By default, a run ends with all sources, or after an epoch at `stop` or a signal.
        lateness : int or str, optional
            In hold-back mode, how far events may lag the greatest time seen, unless an input's spec sets it.
        idle : str, optional
            In hold-back mode, the silence after which a source no longer holds the frontier.
        sink_backlog : str or int
            The bytes of updates that may wait for a sink. Above that, or 10,000 epochs, the run ingests no rows.
        give_up_after : str, optional
            How long ddflow retries a source or a sink that fails. None retries without end.
        evolve, max_absent : {"add", "stop"}, and int or str, optional
            The action for a new column of a source; the most keys that full contents may delete, as in `replace`.
        clock : str, optional
            For a flow with a clock, the longest time between two steps, at the UTC time of this machine; "1s" if None.
        on_epoch : callable, optional
            Called with the `Step` of each epoch after its commit, on this thread. An error in it ends the run.

        Returns
        -------
        RunDone
            The counts of the run, and the reason for its end.

        Raises
        ------
        SpecError
            For an unknown name, an invalid option, or an output without the key that a mode needs.
        SinkRefused, SinkAhead
            For a target that this state cannot write, or a target with an epoch of another history.
        SourceFailed, SinkFailed, SourceChanged, SchemaMismatch, DdflowError
            For a failure that lasted ``give_up_after``, and the state is complete; for a source that has changed; for a
            new or wider column; and the errors of `step` and `evolve`.

        Notes
        -----
        The state keeps updates for a sink until you `detach` it. When you open the state later, the flow is allowed to
        lack the columns that a run added.
        """
        waits = lateness, idle, sink_backlog, give_up_after
        options = RunOptions(interval, rows, until, *waits, room, evolve, max_absent, clock)
        return RunLoop(self, sources or {}, sinks or {}, options, shows=True, on_epoch=on_epoch).run()

    def stop(self) -> None:
        """End the current run after the run commits its current epoch.

        If no run is active, the next run returns immediately. You may call `stop` from any thread and from a signal
        handler, because `stop` does not wait for the run to end. `close` waits.
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
        """Make the target tables equal to the outputs as of the last epoch. Only the differences are written.

        Parameters
        ----------
        sinks : mapping of str to TableSink
            The sink of each output.
        adopt : bool
            Whether to take over a table that has no sink record, or the sink record of another state.
        dry : bool
            Whether to report the differences and write nothing.
        look : callable
            Called with the number of rows read and written since the last call, to report progress.

        Returns
        -------
        dict of str to Synced
            For each output, how many rows of the table were deleted, changed and added.

        Raises
        ------
        SinkRefused
            For a table of another state without ``adopt``, or a table with other columns. Then no row of any target is
            changed.
        SinkFailed, SpecError
            As in `run`; the error lists the targets that were changed before the failure.

        Notes
        -----
        O(rows of the outputs and the tables). All rows that differ must fit in memory.
        """
        self.calls.commit_waiting_calls("sync")
        return sync_targets(EngineEpochs(self.calls, "sync"), sinks, adopt, dry, look)

    def detach(self, *names: str) -> None:
        """Detach sinks and sources.

        After the call, the state keeps no updates for these sinks and no positions for these sources.

        Parameters
        ----------
        *names : str
            The names of the sinks and sources in `run`. Use ``sink:NAME`` or ``source:NAME`` if a sink and a source
            share a name.

        Raises
        ------
        SpecError
            For a name that is not attached, or a name that a sink and a source share.

        Notes
        -----
        Target tables do not change. If a detached source is attached again, it is read from its beginning. O(what
        changed).
        """
        self.calls.commit_waiting_calls("detach")
        detach_connectors(EngineEpochs(self.calls, "detach"), names)

    def watch(self, name: str, *, rows: int = 10, by: str | None = None, every: float = 0.2) -> Watch:
        """Show an output in a notebook as a table. The table is updated after each call, also during `run`.

        Parameters
        ----------
        name : str
            An output or an input.
        rows : int
            The number of rows to show.
        by : str, optional
            The column that orders the rows, such as ``"revenue desc"``. By default the first column.
        every : float
            The least number of seconds between two drawings. Drawing takes a tenth of the time at most.

        Returns
        -------
        Watch
            The table. `Watch.close` and the engine's `close` end the updates of the table.

        Raises
        ------
        NotReadable
            For an unknown name, or an input of differences that does not keep its rows.
        SpecError
            For an unknown column.

        Notes
        -----
        O(rows of the output) for each drawing.
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
    """A plan under construction. The method `open` makes an engine that runs the plan.

    Parameters
    ----------
    clock : {"timestamp", "date"}, optional
        The type of the times of steps: UTC timestamps of microseconds, or dates.  Every step then needs a time of this
        type.  By default the first step decides; a condition with ``now()`` sets "timestamp".

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
        """Make a flow from a plan, such as a decoded plan, so that you can open it.

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
        flow.clock = plan.clock
        flow.nodes, flow.inputs, flow.outputs = list(plan.nodes), dict(plan.inputs), dict(plan.outputs)
        return flow

    def _render_plan(self, name: str | None, format: str) -> PlanExplanation | PlanDiagram:
        return render_plan(self, name, format)

    def _repr_html_(self) -> str:
        """Render the plan for a notebook."""
        return render_html(self)

    @accept_keyword_options(EngineOptions)
    def open(self, options: EngineOptions) -> Engine:
        """Make an engine that runs the plan of this flow. Use the engine in a ``with`` statement."""
        return Engine(self, options)

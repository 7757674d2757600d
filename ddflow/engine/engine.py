"""An engine, an opened plan that takes steps, answers reads and runs sources and sinks; and `Flow`, which opens it.

Guarantees: a call happens as a whole or not at all. Everything is computed before anything changes, so a refused step
leaves the engine as it was. Calls on durable state become epochs, which are published as a whole (`commits`).
Limits: one thread writes at a time. An interrupt while changes are applied in memory ends the engine.

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
    """Make an empty dataflow. ``durable``: the commits of its state; None for state in memory."""
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
    """Fill a dataflow with a state.  O(bytes of the state).  Raises `CorruptState`, naming the file."""
    began = perf_counter()
    dataflow.owed = durable.recover_dataflow(dataflow)
    where, took = durable.log.manifest_log.store.where, (perf_counter() - began) * 1e3
    LOG.info("opened %s at epoch %d in %.1f ms", where, durable.log.epoch, took)


class Engine(Reading, Closing):
    """Runs a flow.  `Flow.open` makes it and has its options; `Reading` has what you can read of it.

    Use it in a ``with``.  One thread at a time may write, another gets `ConcurrentUse`; any thread may read.  After
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
        """Free all state in memory.  A second call does nothing.

        Calls that wait for ``commit_every="50ms"`` are committed first; under None, uncommitted calls are lost. A `run`
        on another thread is stopped like by `stop`, and this call waits for it.
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
        """Epoch mode: take in rows of any inputs as one epoch, stamped ``time``.

        Parameters
        ----------
        inputs : mapping of str to table, or table
            By input, a path or anything that speaks Arrow. With one input its rows are enough.
        time : int, date, datetime or str, optional
            The ``_time`` of the updates, above the last step's; by default the next number, 1 at first. The first step
            sets the type of times: int64, dates, or timestamps of microseconds. The last two have no default.
        epoch : int, optional
            On durable state, its number. A replayed epoch or ``time`` returns its first result. Without both no call is
            a replay.

        Returns
        -------
        Step
            The updates of each output, and the verdicts.

        Raises
        ------
        WrongMode, TimeWentBack
            In hold-back mode; if ``time`` is not above the last step's.
        NotArrow, SchemaMismatch, NullKey
            For rows that the inputs do not take; for a time of another type than earlier times, or a missing one.
        TieRefused, BudgetExceeded, CountOverflow
            If a rule, the budget or an operator refuses the step; there are more of these.  Nothing changes then.
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
        """Hold-back mode: take in rows, which wait until their times close; bad and late ones get verdicts at once.

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
            What `step` raises.

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
        """Hold-back mode: close the times below ``frontier``.

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
            In epoch mode; if ``frontier`` is below the present one.
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
        """Commit the calls that are not committed yet as one epoch, state and outputs together.

        With ``commit_every="call"``, every call has done that already.

        Returns
        -------
        int
            The number of the last committed epoch.

        Raises
        ------
        SpecError, Fenced, StorageFull, StorageFailed, OutcomeUnknown
            If the state is not durable; if another writer has committed; if the commit did not, or may have, happened.

        Notes
        -----
        After all of these but `SpecError`, open the state again.  O(what changed).
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
        """Epoch mode: make ``table`` all that the input ``name`` holds from ``time`` on; returns the differences.

        The rows of ``table`` win over whatever order is held.  Keys in the scope that are not in it are deleted, and
        counted as ``verdicts.absent``.  A column that it lacks is null, with a warning; under a merge it stays.

        Parameters
        ----------
        name : str
            The input.  Or ``{name: table}``, which replaces several in one step; of one input its rows alone will do.
        table : table
            A path or anything that speaks Arrow.  A reader is read as it goes; 8 or 16 bytes a row stay in memory.
        time, epoch
            As in `step`.
        scope : str, optional
            SQL over the row's columns: only rows within it are replaced, and all of ``table`` must be.
        order : mapping or scalar, optional
            That of the deletions, by column of ``order_by`` and ``seq``.  By default the greatest in the table.
        max_absent : int or str, optional
            How many keys may be deleted, or which share of those held: 100, "50%".
        allow_empty : bool
            Whether a ``table`` without rows may delete all keys.

        Raises
        ------
        DuplicateKeys, OutOfScope, TooManyAbsent, EmptyContents, ExpressionError, SpecError
            If it names a key twice, has rows outside the scope, lacks too many keys or all; for a bad scope or order.
        DdflowError
            What `step` raises.  Nothing changes then.

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
        """Epoch mode: make the input ``name`` what ``events``, its corrected history, fold to from nothing.

        Keys then hold the orders of the winners among these.  Keys that no event names are deleted as in `replace`.

        Parameters
        ----------
        name, time, epoch
            As in `replace`.
        events : table
            Anything that speaks Arrow.  A reader is read as it goes.
        order : mapping or scalar, optional
            As in `replace`.  By default the greatest among the events.
        allow_empty : bool
            Whether ``events`` without rows may delete all keys.

        Returns
        -------
        Step
            The differences, and the verdicts.

        Raises
        ------
        DdflowError
            What `replace` raises, without `DuplicateKeys` and `OutOfScope`.

        Notes
        -----
        O(n + k), for n events and k held keys.
        """
        return replace_rows(
            self.calls, "restate", name, events, time, None, order, epoch, AbsenceLimit(empty=allow_empty)
        )

    def evolve(self, columns: Any) -> None:
        """Take in new columns and wider types of inputs, between two calls; the next commit publishes them.

        New columns come last, null in all existing rows, unless a name is close to another column's. Integers, floats
        and text may become wider. Outputs that pass all columns grow with their input; projections and groups do not.

        Parameters
        ----------
        columns : schema or mapping
            A schema or ``{column: type}``; of several inputs ``{input: columns}``.  Others stay as they are.

        Raises
        ------
        SpecError, PlanChanged
            For a type that is not wider or would rewrite state (`ddflow.evolve`); for a new column whose name may be
            misspelled (declare it in the flow and open that instead); while calls are not committed.

        Notes
        -----
        O(rows) of the columns that widen, of all rows if a column is new.
        """
        evolve_engine(self.calls, columns)

    def compact(self, forget: bool = False) -> None:
        """Merge all state into one run each, and publish it as another version of the same epoch.

        Parameters
        ----------
        forget : bool
            Also delete history up to the last closed time, and every byte of deleted rows.  Earlier epochs can then not
            be given again, nor earlier versions read.

        Raises
        ------
        SpecError
            While calls are not committed, contents of new outputs not given yet or, with ``forget``, readers open.

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
        """Follow sources, commit what comes with their positions, and give each epoch to the sinks.

        Parameters
        ----------
        sources : mapping of str to Source
            By input, such as ``dd.sources.files("landing/*.csv", follow=True)``.
        sinks : mapping of str to TableSink
            By output, such as ``dd.sinks.duckdb("shop.duckdb", "by_city")``.  They need a durable state.
        interval : str
            How long rows are gathered for an epoch.
        rows, room : int, and str or int
            An epoch ends earlier after so many rows, or about so many bytes.
        until : str or datetime, optional
            A span, or a time, to end at. By default when all sources end, or after an epoch at `stop` or a signal.
        lateness : int or str, optional
            Hold-back mode: how late events may come after the greatest time seen, unless an input's spec sets it.
        idle : str, optional
            Hold-back mode: a source that is silent for so long does not hold the frontier.
        sink_backlog : str or int
            Bytes of updates that may wait for a sink (or 10,000 epochs); then no more input is taken.
        give_up_after : str, optional
            How long ddflow retries a source or a sink that fails; None: for ever.
        evolve : {"add", "stop"}
            Add a new column of a source after an epoch, or end the run.
        max_absent : int or str, optional
            The most keys that full contents of a source may delete, 100 or ``"50%"``, as of `replace`.
        on_epoch : callable, optional
            Called with the `Step` of each epoch, on this thread, after its commit. An error in it ends the run.

        Returns
        -------
        RunDone
            Its counts, and the reason for its end.

        Raises
        ------
        SpecError
            For an unknown name, an invalid option, an output without the key that a mode needs.
        SinkRefused, SinkAhead
            For a target that this state cannot write, or that has an epoch of another history.
        SourceFailed, SinkFailed
            For a failure that lasted ``give_up_after``; the state is complete.
        SourceChanged, SchemaMismatch, DdflowError
            For a source that has changed; for a column that is new or wider; the errors of `step` and `evolve`.

        Notes
        -----
        A state keeps updates for a sink until you `detach_connectors` it. You may open it without the columns that a
        run added.
        """
        waits = lateness, idle, sink_backlog, give_up_after
        options = RunOptions(interval, rows, until, *waits, room, evolve, max_absent)
        return RunLoop(self, sources or {}, sinks or {}, options, shows=True, on_epoch=on_epoch).run()

    def stop(self) -> None:
        """End the run in hand behind its epoch, which it commits; without one, the next run returns at once.

        Any thread may, and a signal's handler: it does not wait.  `close` waits.
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
        """Write the difference between the outputs and their targets to the targets, as of the last epoch.

        Parameters
        ----------
        sinks : mapping of str to TableSink
            By output.
        adopt : bool
            Whether to take over a table without a record, or with the record of another state.
        dry : bool
            Only report the difference.
        look : callable
            For progress, called with the number of rows read of outputs and tables, and written, since its last call.

        Returns
        -------
        dict of str to Synced
            By output, how many rows of the table were deleted, changed and added.

        Raises
        ------
        SinkRefused
            For a table of another state, without ``adopt``, or of another shape; no row of any target is changed.
        SinkFailed, SpecError
            As `run`; the error lists the targets that were changed before one failed.

        Notes
        -----
        O(rows of the outputs and the tables).  It holds all rows that differ.
        """
        self.calls.commit_waiting_calls("sync")
        return sync_targets(EngineEpochs(self.calls, "sync"), sinks, adopt, dry, look)

    def detach(self, *names: str) -> None:
        """Forget sinks, whose updates the state keeps, and sources with their positions.

        Parameters
        ----------
        *names : str
            Of outputs and of inputs, with their names in `run`; ``sink:NAME`` or ``source:NAME`` if both have the name.

        Raises
        ------
        SpecError
            For a name that is not attached, or that a sink and a source have.

        Notes
        -----
        Tables stay as they are. A source attached later is read from its beginning. O(what changed).
        """
        self.calls.commit_waiting_calls("detach")
        detach_connectors(EngineEpochs(self.calls, "detach"), names)

    def watch(self, name: str, *, rows: int = 10, by: str | None = None, every: float = 0.2) -> Watch:
        """Show an output in a notebook, as a table that follows each call, also those of `run`.

        Parameters
        ----------
        name : str
            An output or an input.
        rows : int
            How many rows are shown.
        by : str, optional
            The column that orders them, such as ``"revenue desc"``; by default the first one.
        every : float
            Seconds between two drawings at least; drawing takes a tenth of the time at most.

        Returns
        -------
        Watch
            The table. `Watch.close` ends it, and the engine's `close` too.

        Raises
        ------
        NotReadable
            For an unknown name, and for differences that are not kept.
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
        """Assert the invariants of everything below."""
        self.dataflow._check_invariants()


class Flow(Plan, Explaining, ForeignVerbHints):
    """A plan under construction, and `open`, which runs it.

    Attributes
    ----------
    inputs : dict of str to Input
        By name.
    outputs : dict of str to Collection
        By name.
    """

    _shown = "a flow"
    _instead = {
        name: f"with flow.open() as engine: engine.{name}(...)"
        for name in ("step", "push", "run", "read", "replace", "evolve", "why", "watch", "stats")
    } | {"source": "upserts(name, schema, spec)", "input": "upserts(name, schema, spec)", "sink": "output(name, rows)"}

    @classmethod
    def of(cls, plan: Plan) -> "Flow":
        """Make a flow of a plan, such as one that was read back, so that you can open it.

        Parameters
        ----------
        plan : Plan
            The plan.  What you add to the flow later does not change it.

        Returns
        -------
        Flow
            With the same collections.

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
        """Make an engine that runs this plan.  Use it in a ``with``."""
        return Engine(self, options)

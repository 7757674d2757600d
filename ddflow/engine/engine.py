"""The engine: a plan, opened.  Steps in, differences and verdicts out; the collections can be read at any time.

Invariant: a call either happens whole or not at all. Everything is computed before anything changes, so a refused step
(a null key, a tie, an overflow) leaves the engine as it was, and events in = resolved + pending holds after every call.
A step that is interrupted while it takes its changes in cannot be undone in memory; the engine then refuses to go on.
One thread at a time writes. On durable state calls become epochs, published whole (``commits``).

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open() as engine:
...     out = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
...     print(out["by_city"].to_pylist(), out.verdicts)
[{'city': 'Bern', 'count': 2, '_time': 1, '_diff': 1}] applied 2
"""

from typing import Any

from ddflow.dataflow.inflow import by_input, lateness_frontier
from ddflow.dataflow.result import Step
from ddflow.engine.attaching import Attaching
from ddflow.engine.calls import Calls
from ddflow.engine.commits import Asked, Commits
from ddflow.engine.compact import compact
from ddflow.engine.digests import combined
from ddflow.engine.evolve import evolve
from ddflow.engine.opening import new_dataflow, recover, runnable
from ddflow.engine.reads import Reading
from ddflow.engine.replace import Allowed, replace
from ddflow.engine.step_time import step_time
from ddflow.engine.watching import Watching
from ddflow.plan.join_sides import with_shared_sides
from ddflow.plan.options import EngineOptions
from ddflow.plan.plan import Plan
from ddflow.storage.closing import Closing
from ddflow.time import CLOSED, Time, advance, as_int64


class Engine(Reading, Attaching, Watching, Closing):
    """Runs a flow.  `Flow.open` makes it and has its options; `Reading` has what you can read of it.

    Use it in a ``with``.  One thread at a time may write, another gets `ConcurrentUse`; any thread may read.  After
    `close`, a failed commit or an interrupted step, calls raise `EngineClosed`.
    """

    def __init__(self, flow: Plan, options: EngineOptions) -> None:
        flow = runnable(flow, options)
        self.durable = Commits.open(flow, options) if options.state is not None else None
        try:
            flow = with_shared_sides(flow) if self.durable is None else self.durable.log.flow
            super().__init__(new_dataflow(flow, options, self.durable))
            if self.durable is not None:
                recover(self.durable, self.dataflow)
        except BaseException:
            if self.durable is not None:
                self.durable.close()
            raise
        self.calls = Calls(self.dataflow, self.durable, options.metrics, options.commit_every)

    def close(self) -> None:
        """Free all state in memory.  A second call does nothing.

        Calls that wait for ``commit_every="50ms"`` are committed first; under None, uncommitted calls are lost. A `run`
        on another thread is stopped like by `stop`, and this call waits for it.
        """
        with self.dataflow.guard.idle("close", self.stop), self.dataflow.guard.alone("close"):
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
        with dataflow.guard.use("step"):
            calls.check_mode("step", holds_back=False)
            inputs = by_input(inputs, dataflow.admissions)
            at = step_time(calls, "step", time, epoch)
            asked = Asked("step", at, time_type=dataflow.time_type)
            if (again := calls.replayed(asked, epoch, inputs)) is not None:
                return again
            inflows, digest = calls.admit(inputs, at, asked)
            return calls.done(asked, digest, dataflow.step(inflows, at), inflows)

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
        with dataflow.guard.use("push"):
            calls.check_mode("push", holds_back=True)
            inputs = by_input(inputs, dataflow.admissions)
            asked = Asked("push", 0)
            if (again := calls.replayed(asked, epoch, inputs)) is not None:
                return again
            inflows, digest = calls.admit(inputs, None, asked)
            step = dataflow.push(inflows, lateness_frontier(dataflow.admissions, inflows))
            return calls.done(asked, digest, step, inflows)

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
        with dataflow.guard.use("advance_to"):
            calls.check_mode("advance_to", holds_back=True)
            to = as_int64(f"advance to {frontier!r}", frontier, CLOSED, dataflow.time_type)
            asked = Asked("advance_to", to, time_type=dataflow.time_type)
            if (again := calls.replayed(asked, epoch, {})) is not None:
                return again
            advance(dataflow.frontier, to, dataflow.time_type)
            digest = "" if self.durable is None else combined(asked.kind, to, {})
            return calls.done(asked, digest, dataflow.advance({}, to), {})

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
        with self.dataflow.guard.use("flush"):
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
        return replace(self.calls, "replace", name, table, time, scope, order, epoch, Allowed(max_absent, allow_empty))

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
        return replace(self.calls, "restate", name, events, time, None, order, epoch, Allowed(empty=allow_empty))

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
        evolve(self.calls, columns)

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

    def _check(self) -> None:
        """Assert the invariants of everything below."""
        self.dataflow._check()

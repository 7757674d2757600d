"""Replay a log into a new state under another plan, and return the net difference of the outputs.

Guarantees: the old state does not change. The new state is complete when `migrate` returns. After an error, there is no
new state. If a consumer of the old output applies the net difference, it then has the contents of the new output. All
updates of the difference have the last time of the new state, which is greater than all times of the old state. An
output whose columns have changed is refused at the start, unless ``whole`` is set. The result also names the outputs
that exist only in the old plan. The replay makes the same kinds of calls that fed the old state. Full contents remain
full contents, because otherwise deleted keys would return. Limits: in epoch mode the times of the replay differ from
those of the old steps, so you can read only the last time.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.names import DIFF, did_you_mean
from ddflow.engine.engine import Engine, Flow
from ddflow.engine.lineage.log_parts import MARKS, convert_part_rows, mark_log_parts
from ddflow.engine.read.history import make_side_output_error
from ddflow.engine.snapshot import Snapshot
from ddflow.errors import ErrorText, NotReadable, Option, PlanChanged, SpecError, StateRefused
from ddflow.operators.updates import Updates, consolidate, ints
from ddflow.plan.plan import Plan
from ddflow.storage.feeding import FeedHistory
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.opening import State, Trust, open_existing_store, open_store
from ddflow.storage.protocol import Store
from ddflow.time import INT64, NEVER, Time
from ddflow.tools.merge_on_read import feed_log_part


class LogMarker:
    """A callable that marks the parts of a log for a replay. ``old``: the old state. ``flow``: the new plan."""

    def __init__(self, old: Snapshot, flow: Flow) -> None:
        self.old, self.flow = old, flow

    @property
    def has_only_events(self) -> bool:
        """True if the old state received only events, and no full contents."""
        return all(fed.has_only_events for fed in self.old.dataflow.fed.values())

    def __call__(self, name: str, parts: Iterable[Any]) -> Iterator[Any]:
        """Mark the parts of an input's log in the same way as the calls that fed the old state.

        See `ddflow.engine.lineage.log_parts.mark_log_parts`. If the old state lacks an input, the marks in the log of
        this input stay unchanged. If both plans have only one input, the names of these inputs may differ.
        """
        inputs = self.old.flow.inputs
        if name not in self.flow.inputs:
            return iter(parts)  # the engine refuses them
        to = self.flow.inputs[name].bound
        if name not in inputs and len(inputs) == len(self.flow.inputs) == 1:
            name = next(iter(inputs))
        if name not in inputs:
            return iter(parts)
        return mark_log_parts(parts, self.old.dataflow.fed.get(name, FeedHistory()), inputs[name].bound, to)


Feed = Callable[[Engine, int, LogMarker], None]
"""Function that replays a log into an engine and commits repeatedly.

The int is a lower bound for the time of the last step of the replay.
"""


@dataclass(frozen=True, kw_only=True)
class MigrationOptions:
    """The optional parameters of `migrate`."""

    output: str | None = None
    whole: bool = False
    old_flow: Flow | None = None
    retain: int | None = None
    memory: str | int | None = None
    trust: Trust = "owner"
    timed: bool = False
    """Whether the times of the calls are given."""


@dataclass(frozen=True)
class MigrationResult:
    """The result of `migrate`.

    Attributes
    ----------
    tables : dict of str to pyarrow.Table
        By output, the net difference: the row's columns, ``_time``, ``_diff``.  Outputs over differences that are not
        kept are missing, because they cannot be read.
    epoch, last : int
        The last epoch and time of the new state.
    new : list of str
        Outputs that the old state lacks.  Their tables have the full contents.
    whole : list of str
        Outputs with other columns, and outputs that the old state cannot read.  Their tables have the full contents.
    gone : list of str
        Outputs that the new plan lacks.
    left : list of str
        Sources and sinks of the old state, which stay with it.  The new state begins without positions, because its log
        may end elsewhere.  A target accepts epochs of one state; ``ddflow sync --adopt`` moves it to the new state.

    Examples
    --------
    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> def plan(least):
    ...     flow = dd.Flow()
    ...     orders = flow.upserts("orders", {"id": pa.int64(), "amount": pa.int64()}, dd.Upsert(key="id"))
    ...     _ = flow.output("large", orders.filter(f"amount >= {least}"))
    ...     return flow
    >>> log, old = [{"orders": pa.table({"id": [1, 2], "amount": [10, 20]})}], MemoryStore()
    >>> with plan(20).open(old) as engine:
    ...     _ = engine.step(log[0], time=7)
    >>> migrate(old.reopen(), MemoryStore(), plan(10), log).tables["large"].to_pylist()
    [{'id': 1, 'amount': 10, '_time': 8, '_diff': 1}]
    """

    tables: dict[str, pa.Table]
    epoch: int
    last: int
    new: list[str]
    whole: list[str]
    gone: list[str]
    left: list[str]


def migrate(
    old_state: State,
    new_state: State,
    flow: Flow,
    log: Iterable[Mapping[str, Any]],
    output: str | None = None,
    *,
    whole: bool = False,
    old_flow: Flow | None = None,
    retain: int | None = None,
    memory: str | int | None = None,
    trust: Trust = "owner",
    times: Iterable[Time] | None = None,
) -> MigrationResult:
    """Replay ``log`` into a new state under ``flow``, and compare the outputs of both states.

    Parameters
    ----------
    old_state, new_state : str, path or Store
        The old and the new state.  The new one must not exist yet.
    flow : Flow
        The new plan.
    log : iterable of mappings
        The argument of `Engine.step` or `Engine.push`, call by call; each is an epoch.  If each input has one part for
        each call, the old state's record shows which parts are not events.  Otherwise put a mark around the rows of
        such parts: see `ddflow.engine.lineage.log_parts`.
    output : str, optional
        The output to compare.  By default all.
    whole : bool
        Whether to return the full contents of outputs with other columns, instead of an error.
    old_flow : Flow, optional
        The old plan, if it has functions.
    retain : int, optional
        The length of the new state's history, in epoch mode from its last time on.  By default the old state's.
    memory, trust
        See `Flow.open`.  The budget is for the new state.
    times : iterable of date, datetime or str, optional
        The time of each call of the log.  Required if step times are days or timestamps, because a log lacks these.

    Raises
    ------
    StateRefused, PlanChanged
        If the new state exists, or if step times are days or timestamps and ``times`` is missing; for outputs with
        other columns.
    SpecError
        For a log that is one mapping, or that has more calls than ``times``.
    NotReadable, LogUnclear
        For an unknown output; for a log that contradicts the calls that fed the old state.
    DdflowError
        The errors of steps and states.  After any error, a new state in a folder is removed.

    Notes
    -----
    In epoch mode, without ``times``, the calls have the times 1, 2, 3 and so on. The last of these times is greater
    than all times of the old state. In hold-back mode, two kinds of times are closed at the end: all times in the log
    (with ``lateness=``, only those that it closes), and all times that the old state had closed. O(log) time, with
    memory for the old and the new contents of an output.
    """
    if isinstance(log, Mapping):
        found = "it is one mapping, but a log has one mapping for each call"
        raise SpecError("migrate a log", found, "pass a list of mappings: [{'orders': rows}, ...]")
    how: dict[str, Any] = {"retain": retain, "memory": memory, "trust": trust, "timed": times is not None}
    options = MigrationOptions(output=output, whole=whole, old_flow=old_flow, **how)
    with replay_migration(old_state, new_state, flow, _build_log_feed(log, times), options) as done:
        return done


@contextmanager
def replay_migration(
    old_state: State, new_state: State, flow: Flow, feed: Feed, options: MigrationOptions
) -> Iterator[MigrationResult]:
    """Do the work of `migrate`, with the function ``feed`` to replay the log.

    Remove the new state if the block fails.
    """
    output, trust = options.output, options.trust
    with Snapshot.open(old_state, flow=options.old_flow, trust=trust) as old:
        wanted = _select_outputs(old, flow, output, options.whole)
        retain = old.manifest.retain if options.retain is None else options.retain
        both = not flow.holds_back and not old.flow.holds_back
        if both and not options.timed and (kind := old.flow.time_type) != INT64:
            raise StateRefused(
                f"migrate {old_state}",
                f"the times of its steps are days or timestamps ({kind}), but a log does not say which time a call had",
                ErrorText(
                    "pass the time of each call to dd.migrate(times=); or ingest the log into a new state yourself, ",
                    "each step with its day (time=, or --at on the shell); dd.compare shows how outputs differ, and ",
                    "engine.sync(sinks, ",
                    Option("adopt", True),
                    ") brings targets up to date",
                ),
            )
        both = both and not options.timed
        with (
            _create_store(new_state, trust) as store,
            flow.open(store, retain=retain, memory=options.memory, commit_every=None) as engine,
        ):
            kept = engine.dataflow.retain
            if both:
                engine.dataflow.retain = 0  # the replay has other times than the old steps
            feed(engine, old.last + 1 if both and old.last > NEVER else 1, LogMarker(old, flow))
            _close_times(engine, old)
            engine.flush()
            if both and engine.durable is not None:
                engine.durable.set_retention(engine.dataflow, kept)
            tables = {
                name: _compute_net_change(name, old if same else None, engine)
                for name, same in wanted.items()
                if output is not None or not engine.dataflow.graph.list_stateless_inputs(engine.flow.outputs[name])
            }
            other = [name for name, same in wanted.items() if not same]
            yield MigrationResult(
                tables,
                engine.epoch,
                engine.last,
                [n for n in other if n not in old.flow.outputs],
                [n for n in other if n in old.flow.outputs],
                [n for n in old.flow.outputs if n not in flow.outputs],
                [*old.manifest.sources, *old.manifest.sinks],
            )


def _build_log_feed(log: Iterable[Mapping[str, Any]], times: Iterable[Time] | None) -> Feed:
    given = None if times is None else iter(times)

    def choose_time(number: int) -> Time:
        time = number if given is None else next(given, None)
        if time is None:
            raise SpecError("migrate a log", f"it has more calls than times=, which has {number - 1}", "pass all times")
        return time

    def feed(engine: Engine, least: int, told: LogMarker) -> None:
        epochs, time = map(_split_epoch_into_calls, _mark_rows_of_calls(engine.flow, log, told)), 0
        calls: list[Mapping[str, Any]] = next(epochs, [{}])
        while calls:
            following = next(epochs, [])
            for number, inputs in enumerate(calls, 1):
                time += 1
                last = not following and number == len(calls)
                at = choose_time(time)
                _replay_call(engine, inputs, max(time, least) if last and given is None else at)
            engine.flush()
            calls = following

    return feed


def _mark_rows_of_calls(flow: Plan, log: Iterable[Mapping[str, Any]], told: LogMarker) -> Iterator[Mapping[str, Any]]:
    """Mark the parts of the log that were calls with full contents.

    If the old state received only events, the log is streamed; otherwise the complete log is held in memory.
    """
    calls = log if told.has_only_events else list(log)
    parts = (
        {}
        if told.has_only_events
        else {name: told(name, [each[name] for each in calls if name in each]) for name in flow.inputs}
    )
    for inputs in calls:
        given = {name: next(parts.get(name) or told(name, [rows])) for name, rows in inputs.items()}
        known = flow.inputs
        yield {
            name: convert_part_rows(part, known[name].bound) if name in known else part for name, part in given.items()
        }


def _split_epoch_into_calls(inputs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Split an epoch into calls: one call for the events of all inputs, and one call for each marked part."""
    events = {name: rows for name, rows in inputs.items() if not isinstance(rows, MARKS)}
    alone: list[Mapping[str, Any]] = [{name: rows} for name, rows in inputs.items() if isinstance(rows, MARKS)]
    return [events, *alone] if events or not alone else alone


def _replay_call(engine: Engine, inputs: Mapping[str, Any], time: Time) -> None:
    if len(inputs) == 1:
        ((name, part),) = inputs.items()
        feed_log_part(engine, name, part, time)
    elif engine.flow.holds_back:
        engine.push(inputs)
    else:
        engine.step(inputs, time)


def _close_times(engine: Engine, old: Snapshot) -> None:
    """In hold-back mode, close the times of the log and of the old state, unless ``lateness=`` closes them."""
    if not engine.flow.holds_back:
        return
    to = old.frontier if old.flow.holds_back else NEVER
    for name, input in engine.flow.inputs.items():
        if input.spec.lateness is None and engine.dataflow.admissions[name].arrived:
            to = max(to, engine.dataflow.admissions[name].greatest + 1)
    if to > engine.frontier:
        engine.advance_to(to)


def _select_outputs(old: Snapshot, flow: Plan, output: str | None, whole: bool) -> dict[str, bool]:
    """Return the outputs to compare, by name.

    The value of an output is True if both states have this output, with equal columns.
    """
    if output is not None and output in (sides := flow.side_outputs()):
        raise make_side_output_error(f"compare the output {output!r}", output, sides[output][0])
    if output is not None and output not in flow.outputs:
        remedy = did_you_mean(output, flow.outputs, "outputs")
        raise NotReadable(f"the output {output!r} of the new plan", "there is no such output", remedy)
    out = {}
    for name in flow.outputs if output is None else [output]:
        was, now = (_list_columns(each, name) for each in (old.flow, flow))
        # An output over rows that the old state did not keep is returned in full.
        out[name] = was == now and not old.dataflow.graph.list_stateless_inputs(old.flow.outputs[name])
        if was is not None and was != now and not whole:
            raise PlanChanged(
                f"migrate the output {name!r}",
                f"its columns are {now}, but were {was}",
                "use another name, or request its complete new contents (whole=True, --whole)",
            )
    return out


def _list_columns(flow: Plan, name: str) -> list[tuple[str, str]] | None:
    node = flow.outputs.get(name)
    return None if node is None else [(field.name, str(field.type)) for field in node.schema]


def _compute_net_change(name: str, old: Snapshot | None, engine: Engine) -> pa.Table:
    """Return the net change of an output since the old state. All updates have the last time."""
    parts, schema = [(engine.read(name), 1)], engine.flow.outputs[name].schema
    if old is not None:
        before = old.read(name)
        schema = pa.schema([f.with_nullable(f.nullable or before.schema.field(f.name).nullable) for f in schema])
        parts.append((before, -1))
    rows = pa.concat_tables([table.select(schema.names).cast(schema) for table, _ in parts])
    diffs = np.concatenate([sign * table.column(DIFF).to_numpy() for table, sign in parts])
    updates = Updates(rows, np.zeros(diffs.size, np.int32), diffs, ints(engine.last))
    return consolidate(updates, engine.dataflow.secret).to_table(schema, engine.flow.time_type)


@contextmanager
def _create_store(state: State, trust: Trust) -> Iterator[Store]:
    """Create the store of a new state, and delete its folder if the block fails."""
    there = not isinstance(state, Store) and os.path.lexists(state)
    if _has_state(state, trust):
        raise StateRefused(f"migrate to {state}", "a state already exists there", "choose another place")
    store = open_store(state, trust=trust)
    try:
        yield store
    except BaseException:
        store.close()
        if isinstance(store, LocalStore):
            store.remove_new_state(whole=not there)
        raise


def _has_state(state: State, trust: Trust) -> bool:
    """Return whether a state exists.  Raises the errors of the store."""
    try:
        with open_existing_store(state, trust=trust) as store:
            return bool(store.list_manifests()) or store.find_last_published() >= 0
    except StateRefused:
        return False  # any other reason for this error shows when the state is created

"""Hold the options of a run, and check that the sources and sinks fit the plan.

Guarantees: if an argument is invalid, the error names the option, the source or the sink. The error is raised before
ddflow makes a connection or creates anything.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.names import DIFF, did_you_mean
from ddflow.connectors.api import Source, TableShape, TableSink, check_connector
from ddflow.connectors.modes import build_mode_schema
from ddflow.dataflow.budget import parse_size
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.result import Step
from ddflow.engine.calls import EngineCalls
from ddflow.engine.replace import compute_absence_limit
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.plan.plan import Plan
from ddflow.time import CLOSED, parse_seconds, read_clock, time_to_int64, time_to_value

EPOCHS: Final = 10_000
"""The maximum number of epochs that a sink is allowed to lack before the run stops ingesting rows."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a run. `Engine.run` describes each option.

    >>> RunOptions(interval="50ms", until="10min").interval_seconds
    0.05
    >>> RunOptions(interval="soon")
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: interval= soon: that is not a duration; write a number of seconds, or a number with \
ms, s, min, ...
    """

    interval: str = "1s"
    rows: int | None = None
    until: Any = None
    lateness: Any = None
    idle: str | None = None
    sink_backlog: str | int = "1GB"
    give_up_after: str | None = "10min"
    room: str | int = "64MB"
    evolve: Literal["add", "stop"] = "add"
    max_absent: int | str | None = None
    clock: str | None = None

    def __post_init__(self) -> None:
        if self.max_absent is not None:
            compute_absence_limit(self.max_absent, 0)
        _ = (
            self.interval_seconds,
            self.compute_seconds_left(),
            self.idle_seconds,
            self.retry_seconds,
            self.backlog_bytes,
            self.max_epoch_bytes,
            self.clock_seconds,
        )
        if self.rows is not None and (isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1):
            raise SpecError(Option("rows", self.rows), "that is not a number of rows", "use a whole number, 1 or more")
        if self.evolve not in ("add", "stop"):
            remedy = "use 'add' to add new columns, or 'stop' to end the run"
            raise SpecError(f"evolve={self.evolve!r}", "that is not an action for new columns", remedy)

    @property
    def interval_seconds(self) -> float:
        """The number of seconds during which rows for an epoch are gathered."""
        return parse_seconds(str(self.interval), "interval=")

    def compute_seconds_left(self) -> float | None:
        """Return the seconds from now until the run must end. Return None if there is no end."""
        if self.until is None:
            return None
        if isinstance(self.until, datetime.datetime):
            return max(self.until.timestamp() - time(), 0.0)
        return parse_seconds(str(self.until), "until=")

    @property
    def clock_seconds(self) -> float:
        """The most seconds between two steps of a flow with a clock."""
        return parse_seconds(str(self.clock or "1s"), "clock=")

    def check_clock(self, plan: Plan) -> None:
        """Check that the clock of the run fits the plan.  Raises `SpecError`."""
        if self.clock is not None and (plan.holds_back or plan.clock is None):
            found = "its times are those of its events" if plan.holds_back else "its steps are numbered"
            use = ErrorText(Option("lateness"), " and ", Option("idle"), " move the times of a flow in hold-back mode")
            remedy = use if plan.holds_back else 'declare dd.Flow(clock="timestamp"), or compare now() in a condition'
            raise SpecError(f"run a flow with clock={self.clock!r}", found, remedy)
        if not plan.holds_back and plan.clock == pa.date32():
            found = "its clock has dates, so it can make one step a day"
            raise SpecError("run a flow", found, 'use dd.Flow(clock="timestamp"), or call step yourself')

    @property
    def idle_seconds(self) -> float | None:
        """The number of seconds without rows after which a source no longer holds the frontier back."""
        return None if self.idle is None else parse_seconds(self.idle, "idle=")

    @property
    def retry_seconds(self) -> float | None:
        """The number of seconds for which a failure is retried. None means that retries never end."""
        return None if self.give_up_after is None else parse_seconds(self.give_up_after, "give_up_after=")

    @property
    def backlog_bytes(self) -> int:
        """The maximum bytes of updates that are allowed to wait for a sink."""
        return parse_size(self.sink_backlog, "sink_backlog=") or 0

    @property
    def max_epoch_bytes(self) -> int:
        """The maximum bytes of rows in an epoch, approximately."""
        return parse_size(self.room, "room=") or 0

    def convert_lateness(self, kind: pa.DataType) -> int | None:
        """Convert ``lateness`` to the unit of the times. ``kind``: the type of times. Raises `SpecError`."""
        if self.lateness is None or (isinstance(self.lateness, int) and not isinstance(self.lateness, bool)):
            return self.lateness
        if not isinstance(self.lateness, str) or not (pat.is_timestamp(kind) or pat.is_date(kind)):
            raise SpecError(Option("lateness", self.lateness), f"times are {kind}", "use a whole number in their unit")
        units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
        a_second = units[kind.unit] if pat.is_timestamp(kind) else 1 / 86400 if pat.is_date32(kind) else 1000
        return round(parse_seconds(self.lateness, "lateness=") * a_second)


class RunLoopEngine(Protocol):
    """The methods that a run needs from an engine."""

    calls: EngineCalls

    def step(self, *given: Any, **options: Any) -> Step: ...

    def push(self, *given: Any, **options: Any) -> Step: ...

    def advance_to(self, *given: Any, **options: Any) -> Step: ...

    def replace(self, *given: Any, **options: Any) -> Step: ...


class StepClock:
    """The times of a run's steps.  ``ticks``: whether the plan has a clock, so that steps have the time of the machine.

    Other steps are numbered, or have the times of their events.
    """

    def __init__(self, dataflow: Dataflow, how: RunOptions) -> None:
        self._dataflow, self._seconds, self._stepped = dataflow, how.clock_seconds, 0.0
        self.ticks = dataflow.flow.clock is not None and not dataflow.flow.holds_back

    def choose_time(self) -> Any:
        """Return the time of the next step: the UTC time, or later than the last step.  None without a clock."""
        if not self.ticks:
            return None
        self._stepped = monotonic()
        kind = self._dataflow.time_type
        return time_to_value(max(read_clock(kind), self._dataflow.last + 1), kind)

    def find_due_time(self) -> Any:
        """Return the time of a step without rows, or None if none is due or if no row comes or goes."""
        if not self.ticks or monotonic() - self._stepped < self._seconds:
            return None
        now = self.choose_time()
        until = time_to_int64("step", now, CLOSED, self._dataflow.time_type)
        return now if self._dataflow.graph.has_due_updates(until) else None


def check_run_arguments(
    plan: Plan, sources: Mapping[str, Source], sinks: Mapping[str, TableSink], how: RunOptions
) -> None:
    """Check all arguments of a run. O(inputs and outputs).

    Raises the errors of `check_sources`, `make_table_shape` and `compute_input_lateness`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> sinks = {"people": dd.sinks.sqlite("a.db", "t")}
    >>> check_run_arguments(flow, {"people": dd.sources.files("people/*.csv")}, sinks, RunOptions())
    >>> check_run_arguments(flow, {}, {"peple": dd.sinks.sqlite("a.db", "t")}, RunOptions())
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: the sink of 'peple': there is no such output; did you mean 'people'? the ...
    """
    check_sources(plan, sources)
    how.check_clock(plan)
    for name, sink in sinks.items():
        make_table_shape(plan, name, sink)
    compute_input_lateness(plan, how)


def check_sources(plan: Plan, sources: Mapping[str, Source]) -> None:
    """Check that no input has more than one source. O(inputs).

    Raises `SpecError`. Raises `MissingExtra` if a source or the format of an input needs a library that is not
    installed.
    """
    fed = dict[str, str]()
    for name, source in sources.items():
        check_connector(f"the source {name!r}", source, Source)
        for each in source.inputs(name):
            if each not in plan.inputs:
                remedy = (
                    f"{did_you_mean(each, plan.inputs, 'inputs')}; name a source of one table or topic like its input"
                )
                raise SpecError(f"the source {name!r}", f"there is no input {each!r}", remedy, input=each)
            if fed.setdefault(each, name) != name:
                raise SpecError(
                    f"the source {name!r}",
                    f"{fed[each]!r} also feeds the input {each!r}",
                    "pass one source",
                    input=each,
                )
            if (format := plan.inputs[each].bound.format) is not None:
                format.needs()
        source.needs()


def make_table_shape(plan: Plan, name: str, sink: TableSink) -> tuple[tuple[str, ...] | None, TableShape]:
    """Return the key that the plan proves for an output, and the shape of the table in the sink. O(columns).

    Raises `SpecError`. Raises `MissingExtra` if the sink needs a library that is not installed.
    """
    asked, updates = f"the sink of {name!r}", plan.updates_schema(name)
    check_connector(asked, sink, TableSink)
    mode = sink.mode
    outputs = {**plan.outputs, **plan.side_outputs()}
    if name not in outputs or updates is None:
        raise SpecError(asked, "there is no such output", did_you_mean(name, outputs, "outputs"))
    if mode not in sink.modes:
        raise SpecError(asked, f"{sink.kind} has no mode {mode!r}", f"use one of {list(sink.modes)}")
    key = plan.outputs[name].identified_by() if name in plan.outputs else None
    if mode == "upsert" and key is None:
        remedy = "include an input's key, all groups of an aggregate, the key and order of versions, or the groups "
        remedy += (
            "and ranks of a top (rank_name=, in SQL row_number()); or end it with to_upserts(key), or write it with "
        )
        remedy += Option("mode", "changelog")
        raise SpecError(asked, "the plan proves no key for its rows, but mode 'upsert' needs one", remedy)
    if DIFF not in updates.names and name in plan.outputs and mode not in ("upsert", "updates"):
        raise SpecError(asked, "its rows are already upserts", ErrorText("write it with ", Option("mode", "upsert")))
    sink.needs()
    by = key if mode == "upsert" else None
    return key, TableShape(
        name,
        build_mode_schema(mode, updates),
        by,
        by is not None and plan.outputs[name].find_never_null_columns().issuperset(by),
    )


def compute_input_lateness(plan: Plan, how: RunOptions) -> dict[str, int]:
    """Return the lateness of each input: the distance between the greatest time seen and the frontier.

    O(inputs). In epoch mode, the result is empty. Raises `SpecError` if neither the run nor the spec of an input sets a
    lateness.
    """
    if not plan.holds_back:
        return {}
    given, late = how.convert_lateness(plan.time_type), dict[str, int]()
    for name, input in plan.inputs.items():
        mine = input.bound.spec.lateness if given is None else given
        if mine is None:
            remedy = ErrorText("pass ", Option("lateness"), ", how far events may be behind the greatest time seen")
            raise SpecError("run a flow in hold-back mode", f"nothing closes times of {name!r}", remedy)
        late[name] = mine
    return late

"""Hold the options of a run, and check that the sources and sinks fit the plan.

Guarantees: if an argument is invalid, the error names the option, the source or the sink. The error is raised before
ddflow makes a connection or creates anything.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.names import DIFF, did_you_mean
from ddflow.connectors.api import Source, TableShape, TableSink, check_connector
from ddflow.connectors.modes import build_mode_schema
from ddflow.dataflow.budget import parse_size
from ddflow.engine.replace import compute_absence_limit
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.plan.plan import Plan
from ddflow.time import parse_seconds

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

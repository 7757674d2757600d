"""Hold the options of a run, and check that its sources and sinks fit the plan.

Guarantees: every mistake is an error that names the option, the source or the sink. It is raised before any connection
is made and before anything is created.
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
"""The number of epochs that may wait for a sink."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, see `Engine.run`.

    >>> RunOptions(interval="50ms", until="10min").interval_seconds
    0.05
    >>> RunOptions(interval="soon")
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: interval= soon: that is no span of time; write a number of seconds, or one with ms, s, \
min, ...
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
            raise SpecError(Option("rows", self.rows), "that is no number of rows", "give a whole number, 1 or more")
        if self.evolve not in ("add", "stop"):
            remedy = "use 'add', to take columns that are new, or 'stop'"
            raise SpecError(f"evolve={self.evolve!r}", "that is no way to take columns", remedy)

    @property
    def interval_seconds(self) -> float:
        """The seconds of an epoch."""
        return parse_seconds(str(self.interval), "interval=")

    def compute_seconds_left(self) -> float | None:
        """Return the seconds from now to the end; None without an end."""
        if self.until is None:
            return None
        if isinstance(self.until, datetime.datetime):
            return max(self.until.timestamp() - time(), 0.0)
        return parse_seconds(str(self.until), "until=")

    @property
    def idle_seconds(self) -> float | None:
        """The seconds of silence after which a source is left out."""
        return None if self.idle is None else parse_seconds(self.idle, "idle=")

    @property
    def retry_seconds(self) -> float | None:
        """The seconds of retries after a failure; None: no limit."""
        return None if self.give_up_after is None else parse_seconds(self.give_up_after, "give_up_after=")

    @property
    def backlog_bytes(self) -> int:
        """The bytes of updates that may wait for a sink."""
        return parse_size(self.sink_backlog, "sink_backlog=") or 0

    @property
    def max_epoch_bytes(self) -> int:
        """The approximate bytes of rows in an epoch."""
        return parse_size(self.room, "room=") or 0

    def convert_lateness(self, kind: pa.DataType) -> int | None:
        """Convert ``lateness`` to the unit of a type of time. Raises `SpecError`."""
        if self.lateness is None or (isinstance(self.lateness, int) and not isinstance(self.lateness, bool)):
            return self.lateness
        if not isinstance(self.lateness, str) or not (pat.is_timestamp(kind) or pat.is_date(kind)):
            raise SpecError(Option("lateness", self.lateness), f"times are {kind}", "give a whole number in their unit")
        units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
        a_second = units[kind.unit] if pat.is_timestamp(kind) else 1 / 86400 if pat.is_date32(kind) else 1000
        return round(parse_seconds(self.lateness, "lateness=") * a_second)


def check_run_arguments(
    plan: Plan, sources: Mapping[str, Source], sinks: Mapping[str, TableSink], how: RunOptions
) -> None:
    """Check the arguments of a run. O(inputs and outputs).

    Raises the errors of `check_sources`, `make_table_shape` and `compute_input_lateness`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> sinks = {"people": dd.sinks.sqlite("a.db", "t")}
    >>> check_run_arguments(flow, {"people": dd.sources.files("people/*.csv")}, sinks, RunOptions())
    >>> check_run_arguments(flow, {}, {"peple": dd.sinks.sqlite("a.db", "t")}, RunOptions())
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: the sink of 'peple': there is no such output; did you mean 'people'? there are ['people']
    """
    check_sources(plan, sources)
    for name, sink in sinks.items():
        make_table_shape(plan, name, sink)
    compute_input_lateness(plan, how)


def check_sources(plan: Plan, sources: Mapping[str, Source]) -> None:
    """Check that each input has at most one source. O(inputs).

    Raises `SpecError`, and `MissingExtra` for a library that a source or an input's format needs.
    """
    fed = dict[str, str]()
    for name, source in sources.items():
        check_connector(f"the source {name!r}", source, Source)
        for each in source.inputs(name):
            if each not in plan.inputs:
                remedy = f"{did_you_mean(each, plan.inputs)}; a source of one table or topic has the name of its input"
                raise SpecError(f"the source {name!r}", f"there is no input {each!r}", remedy, input=each)
            if fed.setdefault(each, name) != name:
                raise SpecError(
                    f"the source {name!r}", f"{fed[each]!r} feeds the input {each!r}", "give one", input=each
                )
            if (format := plan.inputs[each].bound.format) is not None:
                format.needs()
        source.needs()


def make_table_shape(plan: Plan, name: str, sink: TableSink) -> tuple[tuple[str, ...] | None, TableShape]:
    """Return the key that the plan proves for an output, and the shape of its sink's table. O(columns).

    Raises `SpecError`, and `MissingExtra` for a library that the sink needs.
    """
    asked, updates = f"the sink of {name!r}", plan.updates_schema(name)
    check_connector(asked, sink, TableSink)
    mode = sink.mode
    outputs = {**plan.outputs, **plan.side_outputs()}
    if name not in outputs or updates is None:
        raise SpecError(asked, "there is no such output", did_you_mean(name, outputs))
    if mode not in sink.modes:
        raise SpecError(asked, f"{sink.kind} has no mode {mode!r}", f"use one of {list(sink.modes)}")
    key = plan.outputs[name].identified_by() if name in plan.outputs else None
    if mode == "upsert" and key is None:
        remedy = (
            "show an input's key, all groups of an aggregate, the key and order of versions, or of a top its groups "
        )
        remedy += "and its places (rank_name=, in SQL row_number()); or end it with to_upserts(key), or write it with "
        remedy += Option("mode", "changelog")
        raise SpecError(asked, "the plan proves no key of its rows, which mode 'upsert' needs", remedy)
    if DIFF not in updates.names and name in plan.outputs and mode not in ("upsert", "updates"):
        raise SpecError(asked, "it has upserts already", ErrorText("write it with ", Option("mode", "upsert")))
    sink.needs()
    by = key if mode == "upsert" else None
    return key, TableShape(
        name,
        build_mode_schema(mode, updates),
        by,
        by is not None and plan.outputs[name].find_never_null_columns().issuperset(by),
    )


def compute_input_lateness(plan: Plan, how: RunOptions) -> dict[str, int]:
    """Return, by input, how far times close behind the greatest time seen; none in epoch mode. O(inputs).

    Raises `SpecError`.
    """
    if not plan.holds_back:
        return {}
    given, late = how.convert_lateness(plan.time_type), dict[str, int]()
    for name, input in plan.inputs.items():
        mine = input.bound.spec.lateness if given is None else given
        if mine is None:
            remedy = ErrorText("give ", Option("lateness"), ", how far behind the greatest time seen events may come")
            raise SpecError("run a flow in hold-back mode", f"nothing closes times of {name!r}", remedy)
        late[name] = mine
    return late

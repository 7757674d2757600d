"""Run the flow of a Python file with its sources and sinks: the verb ``ddflow run``.

This file parses the options, loads the flow and locks the state. `Engine.run` does the work.

Guarantees: only one run at a time uses a state. If a run creates a state and fails before its first epoch, it removes
the state. The first signal ends the run after the current epoch.

>>> split_named_values(["orders=files:landing/*.csv"], "--from")
{'orders': ['files:landing/*.csv']}
"""

import json
import logging
import os
import runpy
import shutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from ddflow.cli.arguments import Trust
from ddflow.cli.say import say
from ddflow.errors import DdflowError, SpecError, StateRefused
from ddflow.metrics import mask_log_record
from ddflow.terminal import format_count

if TYPE_CHECKING:
    import ddflow as dd
    from ddflow.connectors.api import Source, TableSink
    from ddflow.engine.run.report import RunDone
    from ddflow.exporters.to_prometheus import PrometheusExporter


class StateLock:
    """A lock on a state, held for the duration of a run. ``state`` and ``trust`` mean the same as in `Flow.open`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, StateLock(folder), StateLock(folder):
    ...     pass
    Traceback (most recent call last):
        ...
    ddflow.errors.StateRefused: run on the state ...: another run uses it; stop the other run, or use a separate state
    """

    def __init__(self, state: str, trust: str = "owner") -> None:
        self.state, self.trust = state, trust
        self._lock: int | None = None
        self._made = "://" not in state and not os.path.lexists(state)

    def __enter__(self) -> Self:
        """Lock the state, if it exists. Raises `StateRefused`."""
        self.acquire()
        return self

    def acquire(self) -> None:
        """Lock the state if it exists and is not locked yet. Raises `StateRefused`."""
        import fcntl

        if self._lock is not None or not os.path.isdir(self.state):
            return
        with suppress(PermissionError):  # opening the state explains the problem
            self._lock = os.open(self.state, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._unlock()
                remedy = "stop the other run, or use a separate state"
                raise StateRefused(f"run on the state {self.state}", "another run uses it", remedy) from None
            except OSError:  # a file system without locks
                self._unlock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the state.

        After an error, first remove a new state that has no commits, unless another run has locked it.
        """
        if error is not None and self._made:
            with suppress(StateRefused):
                self.acquire()
            if self._lock is not None and not self._has_commits():
                shutil.rmtree(self.state, ignore_errors=True)
        self._unlock()

    def _has_commits(self) -> bool:
        """Return True if the state has commits.

        If the state cannot be read, return True, because the state may have commits.
        """
        from ddflow.storage.manifest import load_newest_manifest
        from ddflow.storage.opening import open_existing_store

        try:
            with open_existing_store(self.state, trust=self.trust) as store:
                manifest = load_newest_manifest(store)
        except DdflowError:
            return bool(os.listdir(self.state))
        return manifest is not None and manifest.number > 0

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


FlowFile = Annotated[
    str,
    typer.Argument(
        metavar="FLOW.PY[:NAME]", show_default=False, help="A Python file and the name of its flow; `flow` by default."
    ),
]
OwnState = Annotated[
    str, typer.Option("--state", metavar="FOLDER", show_default=False, help="The state; a missing one is created.")
]
From = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="INPUT=KIND:WHERE",
        show_default=False,
        help="A source: files:PATTERN, sqlite:FILE#TABLE, duckdb:FILE#TABLE, delta:TABLE, kafka://SERVERS/TOPIC, or "
        "postgres://HOST/DATABASE#TABLE. Options follow a pattern: :full if each file holds all rows, :format=csv for "
        "another extension, :rename=OLD=NEW for columns with other names, and for text :delimiter=;, :null=NA, "
        ":encoding=cp1252, :decimal=, :thousands=. and :dates=%d.%m.%Y. Repeat --from for other inputs, or for "
        "further patterns of an input. @FILE reads these values from the lines of a file.",
    ),
]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="OUTPUT=KIND:WHERE",
        show_default=False,
        help="A sink: sqlite:FILE#TABLE, duckdb:FILE#TABLE, kafka://SERVERS/TOPIC, "
        "postgres://HOST/DATABASE#TABLE, delta:FOLDER, iceberg:NAMESPACE.TABLE, parquet:FOLDER. @FILE reads these "
        "values from the lines of a file. May be repeated.",
    ),
]
Modes = Annotated[
    list[str] | None,
    typer.Option(
        "--mode",
        metavar="OUTPUT=MODE",
        show_default=False,
        help="How the sink of an output writes rows: upsert, changelog, retract, debezium, updates. May be repeated.",
    ),
]


Lateness = Annotated[
    str | None,
    typer.Option(
        "--lateness",
        metavar="N",
        show_default=False,
        help="In hold-back mode, how late events may arrive: 10s, or a number.",
    ),
]
Idle = Annotated[
    str | None,
    typer.Option(
        "--idle",
        metavar="SPAN",
        show_default=False,
        help="In hold-back mode, do not wait for a source that sent nothing for this long, such as 30s.",
    ),
]
Clock = Annotated[
    str | None,
    typer.Option(
        "--clock",
        metavar="SPAN",
        show_default=False,
        help="In a flow that compares now(), make a step at least this often, such as 1s, at the time of this machine.",
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        "--rows", metavar="N", show_default=False, help="End an epoch after this many rows, before --interval is over."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="SPAN", show_default=False, help="End the run after this duration, such as 10min."),
]
NewColumns = Annotated[
    str,
    typer.Option("--evolve", metavar="add|stop", help="Add columns that are new at a source, or stop the run."),
]
MaxAbsent = Annotated[
    str | None,
    typer.Option(
        "--max-absent",
        metavar="N|P%",
        show_default=False,
        help="Stop at full contents that would delete more keys than this: a number (100), or a share of all keys "
        "(50%).",
    ),
]
Backlog = Annotated[
    str,
    typer.Option(
        "--sink-backlog",
        metavar="SIZE",
        help="The most bytes of updates that may wait for a sink; beyond it, no more input is read.",
    ),
]
Patience = Annotated[
    str, typer.Option("--give-up-after", metavar="SPAN|never", help="Retry a failure for this long, then stop.")
]


Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        show_default=False,
        help="The memory budget of the state, such as 512MB; the part that does not fit stays in its files.",
    ),
]
Retain = Annotated[
    int | None,
    typer.Option(
        "--retain",
        metavar="N",
        show_default=False,
        min=0,
        help="How far before the last time the state can be read, from this run on: in numbers, in days, or in the "
        "unit of timestamps, mostly microseconds. Without it, unchanged.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        show_default=False,
        help="Serve metrics to Prometheus at /metrics. Only this machine can read them, unless HOST is 0.0.0.0.",
    ),
]


Follow = Annotated[bool, typer.Option("--follow", help="Keep reading input that arrives later, until a signal.")]
Lines = Annotated[bool, typer.Option("--lines", help="Read each line of a file as a message in the input's format.")]
Room = Annotated[str, typer.Option("--room", metavar="SIZE", help="End an epoch at about this many bytes of rows.")]


def run(
    flow: FlowFile,
    state: OwnState,
    from_: From = None,
    to: To = None,
    mode: Modes = None,
    follow: Follow = False,
    lines: Lines = False,
    interval: Annotated[str, typer.Option("--interval", metavar="SPAN", help="The duration of an epoch.")] = "1s",
    rows: Rows = None,
    room: Room = "64MB",
    evolve: NewColumns = "add",
    max_absent: MaxAbsent = None,
    until: Until = None,
    lateness: Lateness = None,
    idle: Idle = None,
    clock: Clock = None,
    sink_backlog: Backlog = "1GB",
    give_up_after: Patience = "10min",
    memory: Memory = None,
    retain: Retain = None,
    metrics: Metrics = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log each epoch and failure with its time.")] = False,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Read sources in epochs, commit each epoch with its positions, and deliver it to the sinks exactly once.

    Examples:

    * `ddflow run flow.py --state state/shop --from 'orders=files:landing/*.csv' --to by_city=duckdb:shop.duckdb`

    * `ddflow run flow.py --state state/shop --from 'orders=files:landing/*.csv' --follow
      --to by_city=sqlite:shop.db#cities`

    * `ddflow run flow.py --state state/shop --from 'orders=files:nightly/*.csv:full' --max-absent 50%` (each file holds
      all rows, so ddflow deletes a key that the file lacks)

    * `ddflow run live.py --state state/live --from 'shop=postgres://me@db/shop?slot=by_city#orders,customers' --follow
      --to by_city=postgres://me@db/shop` (each table feeds the input of its name; `TABLE=INPUT` names another input)
    """
    from ddflow.connectors.address import parse_source
    from ddflow.engine.run.options import RunOptions, check_run_arguments

    _enable_log(verbose)
    spelled = split_named_values(from_, "--from").items()
    sources = {name: parse_source(first, name, *more, follow=follow, lines=lines) for name, (first, *more) in spelled}
    targets, given = make_sinks(to, mode), load_flow(flow)
    how: dict[str, Any] = {
        "interval": interval,
        "rows": rows,
        "until": until,
        "lateness": int(lateness) if lateness is not None and lateness.isdigit() else lateness,
        "idle": idle,
        "sink_backlog": sink_backlog,
        "give_up_after": None if give_up_after == "never" else give_up_after,
        "room": room,
        "evolve": evolve,
        "max_absent": max_absent,
        "clock": clock,
    }
    check_run_arguments(given, sources, targets, RunOptions(**how))  # before the state exists
    _report_unfed_inputs(given, sources)
    served = metrics and _serve_metrics(flow, metrics)
    choices: dict[str, Any] = {"memory": memory, "retain": retain, "trust": trust, "metrics": served}
    with StateLock(state, trust) as held, given.open(state, **choices) as engine:
        held.acquire()
        _warn_of_events_after_full(engine, sources)
        done, epoch = engine.run(sources, targets, **how), engine.epoch
    _report_run(epoch, done, as_json)


def _enable_log(verbose: bool) -> None:
    """Configure logging: with ``verbose``, each epoch and failure is logged to stderr."""
    if verbose:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
        for handler in logging.getLogger().handlers:  # logs of other libraries are masked as well
            handler.addFilter(mask_log_record)
        logging.getLogger("ddflow").setLevel(logging.INFO)


def _report_unfed_inputs(given: "dd.Flow", sources: "dict[str, Source]") -> None:
    """Report the inputs that have no source."""
    fed = {each for name, source in sources.items() for each in source.inputs(name)}
    if unfed := [each for each in given.inputs if each not in fed]:
        say(f"ddflow: no source feeds {', '.join(map(repr, unfed))}, so no rows arrive there: see --from", err=True)


def _warn_of_events_after_full(engine: "dd.Engine", sources: "dict[str, Source]") -> None:
    """Warn if an input has received full contents, and files are now read into it as events for the first time."""
    assert engine.durable is not None
    for name, source in sources.items():
        fed, known = engine.dataflow.fed.get(name), name in engine.durable.log.sources
        if source.kind == "files" and not getattr(source, "full", False) and not known and fed and fed.full_call_count:
            held = f"the state was fed full contents of {name!r}, but files are now read as events"
            say(f"{held}; if each file holds all rows, write files:PATTERN:full", err=True)


def _report_run(epoch: int, done: "RunDone", as_json: bool) -> None:
    """Report the result of a run."""
    if as_json:
        say(json.dumps({"epoch": epoch} | vars(done)))
        return
    has = "".join(f", {name} has {at:,}" for name, at in done.sinks.items())
    epochs, updates = format_count(done.epochs, "epoch"), format_count(done.updates, "update")
    took = f"{format_count(done.rows, 'row')} in {epochs}, {updates}"
    if not done.epochs:
        took = "no rows, only new positions," if done.moved else "nothing new"
    say(f"{took} in {done.seconds:.2f} s; epoch {epoch:,}{has} ({done.stopped})", err=True)


def _serve_metrics(flow: str, where: str) -> "PrometheusExporter":
    """Create a Prometheus exporter named after the file of the flow, and serve its metrics."""
    from ddflow import exporters

    return exporters.prometheus(Path(flow.partition(":")[0]).stem, serve=where)


def make_sinks(to: Sequence[str] | None, mode: Sequence[str] | None) -> "dict[str, TableSink]":
    """Make the sinks of a command line. Raises `typer.BadParameter`, `SpecError`."""
    from ddflow.connectors.address import parse_sink

    modes: dict[str, list[Any]] = split_named_values(mode, "--mode")
    targets = split_named_values(to, "--to")
    for name, (each,) in modes.items():
        if name not in targets:
            raise typer.BadParameter(f"--mode {name}={each}: there is no --to {name}=...")
    return {name: parse_sink(text, name, *modes.get(name, [None])) for name, (text,) in targets.items()}


def split_named_values(given: Sequence[str] | None, option: str) -> dict[str, list[str]]:
    """Split options of the form ``NAME=REST`` by name. ``@FILE`` stands for the lines of a file.

    Only ``--from`` may repeat a name. Raises `typer.BadParameter`.
    """
    from ddflow.storage.address import mask_address

    found = dict[str, list[str]]()
    for text in chain.from_iterable(map(_expand_file_argument, given or ())):
        name, equals, rest = text.partition("=")
        # An address without a name can also contain "=".
        if not equals or not name or not rest or ":" in name or "@" in name:
            raise typer.BadParameter(f"{option} {mask_address(text)}: write NAME=...")
        if name in found and option != "--from":
            two = "; declare a second output with another name: flow.output(...)" if option == "--to" else ""
            raise typer.BadParameter(f"{option} {name}=...: it is repeated{two}")
        found.setdefault(name, []).append(rest)
    return found


def _expand_file_argument(text: str) -> list[str]:
    """Return the lines of the file after ``@``, so that a list of processes does not show passwords in them.

    Raises `typer.BadParameter`.
    """
    if not text.startswith("@"):
        return [text]
    try:
        return [line.strip() for line in Path(text[1:]).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeError) as error:
        raise typer.BadParameter(f"{text}: {error}; use a text file with lines NAME=KIND:WHERE") from None


def load_flow(text: str) -> "dd.Flow":
    """Load the flow of a Python file. Raises `SpecError`."""
    from ddflow.engine.engine import Flow

    path, name = text, "flow"
    if not os.path.exists(text) and ":" in text:
        path, _, name = text.rpartition(":")
    if not os.path.isfile(path):
        raise SpecError(f"run {path}", "there is no such file", "pass a Python file that defines a flow")
    found = _run_python_file(path).get(name)
    if not isinstance(found, Flow):
        raise SpecError(f"run {path}", f"it has no flow {name!r}", "write flow = dd.Flow() in it, or pass FILE:NAME")
    return found


def _run_python_file(path: str) -> dict[str, Any]:
    """Run a Python file, which may import modules from its own folder, and return its global names.

    Raises `SpecError` for errors in the file.
    """

    sys.path.insert(0, folder := os.path.dirname(os.path.abspath(path)))
    try:
        return runpy.run_path(path, run_name="ddflow.flow")
    except DdflowError:
        raise
    except Exception as error:
        if isinstance(error, SyntaxError):
            where = f"{error.filename}, line {error.lineno}"
        else:
            frames = traceback.extract_tb(error.__traceback__)
            # Find the last line of the user's own code, because the error may come from deep in a library.
            own = [each for each in frames if os.path.abspath(each.filename).startswith(folder + os.sep)]
            where = ", ".join(f"{each.filename}, line {each.lineno}: {each.line}" for each in own[-1:]) or path
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        found = f"{type(error).__name__}: {said}"
        raise SpecError(
            f"run {path}", f"{where}: {found}", "fix the file; --debug shows the complete traceback"
        ) from error
    finally:
        sys.path.remove(folder)

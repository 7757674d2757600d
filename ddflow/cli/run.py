"""One run of ``diff`` or ``count``: files through a flow into an output.

Invariant: a run either ends with a complete output and events in = judged, or with an error and nothing written.  In
epoch mode each file is one step, in the order given, at times 1, 2, 3, ...; in hold-back mode each batch is pushed as
it is read and the end of input closes all times.  Why that is not trivial: the engine's errors speak of rows of a
step, so the file, and where the step began in it, is put in front.  Nothing is interpreted here (``plan``), nor
worded (``show``).

>>> from ddflow.errors import NullKey
>>> with within(Path("a.csv"), 9):
...     raise NullKey("rows for 'input'", "the key ['id'] is null in 1 rows, first [3]", "mend them")
Traceback (most recent call last):
    ...
ddflow.errors.NullKey: a.csv, from row 9: rows for 'input': the key ['id'] is null in 1 rows, first [3]; mend them
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

import ddflow as dd
from ddflow.cli.options import Ask
from ddflow.cli.plan import OUT, SOURCE, check_usage, names, planned
from ddflow.cli.progress import Tick, progress
from ddflow.cli.show import Done, Piped, Preview
from ddflow.errors import DdflowError, OutputExists
from ddflow.files import Input, Output, open_input, open_output
from ddflow.files.types import parse_types
from ddflow.schema import DIFF
from ddflow.step import updates_schema

Target = Output | Piped | Preview


def run(ask: Ask) -> None:
    """Do what is asked, and say what was done.  Raises `DdflowError`, `typer.BadParameter`."""
    check_usage(ask)
    began = perf_counter()
    required = [*names(ask.key), *([ask.time] if ask.time else [])]
    given = open_input(ask.inputs, parse_types(ask.types or ()), required)
    flow = planned(ask, given.schema)
    out = _target(ask, flow, given)
    sides = _sides(ask, flow, given)
    updates = 0
    with ExitStack() as stack:
        engine = stack.enter_context(flow.open())
        for each in (out, *sides.values()):
            stack.enter_context(each)
        hidden = isinstance(out, Piped) and sys.stdout.isatty()
        tick = stack.enter_context(progress(given.rows, hidden))
        for step in _steps(engine, given, ask.held_back, tick):
            updates += step[OUT].num_rows
            tick(0, step[OUT].num_rows)
            if not ask.net:
                out.write(step[OUT])
            for name, side in sides.items():
                side.write(step[name])
        if ask.net:
            out.write(_net(engine))
        verdicts = engine.verdicts
        assert not verdicts.pending, f"{verdicts.pending} events have no verdict"
    files = [str(file) for file in given.files]
    written = str(out.path) if isinstance(out, Output) else None
    epochs = None if ask.held_back else len(files)
    done = Done(files, verdicts.judged, epochs, updates, out.written, verdicts.counts, perf_counter() - began, written)
    if ask.as_json:
        typer.echo(json.dumps(done.as_json()))
    else:
        typer.echo(done.text(), err=True)


def _steps(engine: dd.Engine, given: Input, held_back: bool, tick: Tick) -> Iterator[dd.Step]:
    for time, file in enumerate(given.files, 1):
        if not held_back:
            reader = pa.RecordBatchReader.from_batches(given.schema, _ticked(given.batches(file), tick))
            with within(file):
                step = engine.step({SOURCE: reader}, time=time)
            yield step
            continue
        row = 0
        for batch in _ticked(given.batches(file), tick):
            with within(file, row):
                step = engine.push({SOURCE: batch})
            row += batch.num_rows
            yield step
    if held_back:
        yield engine.advance_to(dd.CLOSED)


def _ticked(batches: Iterator[pa.RecordBatch], tick: Tick) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        tick(batch.num_rows, 0)
        yield batch


@contextmanager
def within(file: Path, row: int = 0) -> Iterator[None]:
    """Put the file in front of what the engine says of its rows, and the row that it counts from."""
    try:
        yield
    except DdflowError as error:
        if str(file) in error.asked:
            raise
        where = f"{file}, from row {row:,}" if row else str(file)
        raise type(error)(f"{where}: {error.asked}", error.found, error.remedy) from None


def _net(engine: dd.Engine) -> pa.Table:
    """The final counts, sorted by group where groups can be sorted."""
    counts = engine.read(OUT).drop_columns([DIFF])
    groups: list[Any] = [(name, "ascending") for name in counts.column_names[:-1]]
    try:
        return counts.take(pc.sort_indices(counts, groups)) if groups else counts
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # lists, structs
        return counts


def _target(ask: Ask, flow: dd.Flow, given: Input) -> Target:
    """Where the rows go.  Raises `OutputExists`, `UnwritableOutput`."""
    rows = flow.outputs[OUT].schema
    schema = rows if ask.net else updates_schema(rows, flow.time_type)
    if ask.output is None and sys.stdout.isatty():
        return Preview(schema)
    return Piped() if ask.output in (None, "-") else _file(Path(str(ask.output)), schema, ask, given)


def _sides(ask: Ask, flow: dd.Flow, given: Input) -> dict[str, Output]:
    """The files for the outputs that ``--stale`` adds, by output."""
    sides = flow.side_outputs().items() if ask.stale_output is not None else ()
    schemas = {name: updates_schema(schema, flow.time_type) for name, (_, schema) in sides}
    return {name: _file(Path(str(ask.stale_output)), schema, ask, given) for name, schema in schemas.items()}


def _file(path: Path, schema: pa.Schema, ask: Ask, given: Input) -> Output:
    """An output file that is no input."""
    if path.exists() and any(path.samefile(file) for file in given.files):
        raise OutputExists(f"write {path}", "it is one of the inputs", "choose another name")
    return open_output(path, schema, ask.overwrite)

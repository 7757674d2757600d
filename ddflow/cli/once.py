"""One run of ``diff``, ``count`` or ``replace``: files through a flow into an output.

Invariant: a run either ends with a complete output and events in = resolved, or with an error and nothing written. In
epoch mode each file is one step, in the order given, at times 1, 2, 3, ...; in hold-back mode each batch is pushed as
it is read and the end of input closes all times. What was read and resolved is told of in full, also where some of it
was for a state that goes on (``continued``). Nothing is interpreted here (``plan``), nor worded (``show``).

>>> run.__name__
'run'
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ddflow as dd
from ddflow.cli.continued import check_at, declared, epochs, in_times_of, opened, state_columns
from ddflow.cli.full_like import FULL, FullLike
from ddflow.cli.messages import say_bad
from ddflow.cli.options import Ask
from ddflow.cli.plan import INPUT, OUT, check_usage, names, planned
from ddflow.cli.progress import Tick, progress
from ddflow.cli.reading import Skipped, marked, readable, taken, within
from ddflow.cli.say import say
from ddflow.cli.show import Done, Piped, Preview
from ddflow.cli.stopped import Course, told
from ddflow.columns.names import DIFF
from ddflow.columns.schema import updates_schema
from ddflow.connectors.files import FileOutput, FilePosition, FilesSource, open_output
from ddflow.dataflow.inflow import add
from ddflow.dataflow.verdicts import Verdicts
from ddflow.errors import OutputExists, PlanChanged
from ddflow.storage.address import public

Target = FileOutput | Piped | Preview


def run(ask: Ask) -> None:
    """Do what is asked, and say what was done.  Raises `DdflowError`, `typer.BadParameter`."""
    check_usage(ask)
    began = perf_counter()
    skipped = Skipped(ask.skip_bad_files)
    given = opened(ask, [*names(ask.key), *([ask.time] if ask.time else [])], skipped)
    check_at(ask, given.files)
    flow = in_times_of(ask, planned(ask, declared(ask, given)))
    out = target(ask, flow, given)
    sides = _sides(ask, flow, given)
    updates, counts = 0, dict[str, int]()
    with ExitStack() as stack:
        stack.callback(given.close)
        engine = stack.enter_context(opening(ask, flow))
        course = Course(engine.epoch)
        stack.enter_context(told(engine, course))
        for each in (out, *sides.values()):
            stack.enter_context(each)
        stack.enter_context(course.keeping([out, *sides.values()]))
        shown = stack.enter_context(progress(given.rows, isinstance(out, Piped) and sys.stdout.isatty()))

        def tick(rows: int, updates: int) -> None:
            skipped.rows += rows
            shown(rows, updates)

        looks = FullLike(not (ask.whole or ask.held_back or ask.state or ask.tombstone or ask.delete or ask.merge))
        for step in _steps(engine, given, ask, tick, skipped, course):
            if looks.alike:
                looks.saw(sum(step.verdicts.counts.values()), engine.dataflow.graph.arrangements[INPUT].keys)
            with course.writes():
                if not ask.net:
                    out.write(step[OUT])
                for name, side in sides.items():
                    side.write(step[name])
            updates += step[OUT].num_rows
            add(counts, {**step.verdicts.counts, "absent": step.verdicts.absent})
            tick(0, step[OUT].num_rows)
        if ask.net:
            out.write(_net(engine))
        epoch, pending = engine.epoch, engine.verdicts.pending
        assert ask.state is not None or not pending, f"{pending} events have no verdict"
        skipped.check(given.files)
    files = [file for file in given.files if file not in skipped]
    done = Done(
        files,
        rows=skipped.rows,
        epochs=None if ask.held_back else len(files),
        updates=updates,
        written=out.written,
        verdicts=_verdicts(counts),
        seconds=perf_counter() - began,
        output=str(out.path) if isinstance(out, FileOutput) else None,
        epoch=None if ask.state is None else epoch,
        pending=pending,
        skipped=dict(skipped),
    )
    if ask.as_json:
        say(json.dumps(done.as_json()))
    else:
        say(done.text(), err=True)
        say_bad(counts.get("bad", 0), ask.bad_output)
        if (hint := looks.hint(FULL[ask.counts])) is not None:
            say(hint, err=True)


def opening(ask: Ask, flow: dd.Flow) -> dd.Engine:
    """Open the engine of a run, on its state if it names one.  Raises as `Flow.open`."""
    if ask.state is None:
        return flow.open()
    trust: Any = ask.trust
    try:
        return flow.open(ask.state, memory=ask.memory, retain=ask.retain, trust=trust, commit_every=None)
    except PlanChanged as error:
        if state_columns(ask.state, ask.trust) is not None:
            raise
        more = f"a state of your own flow goes on with it: ddflow run FLOW.PY --state {shlex.quote(public(ask.state))}"
        raise error.change(fix=error.fix + f"; {more}") from None


def _steps(
    engine: dd.Engine, given: FilesSource, ask: Ask, tick: Tick, skipped: Skipped, course: Course
) -> Iterator[dd.Step]:
    if ask.state is not None:
        yield from epochs(engine, given, ask, tick, skipped, course=course)
        return
    if ask.held_back:
        for ready in readable(given, skipped, tick):
            row = 0
            for batch in ready.batches:
                with within(given, FilePosition(ready.file, row)):
                    step = engine.push({INPUT: batch})
                row += batch.num_rows
                yield step
        yield engine.advance_to(dd.CLOSED)
        return
    time = 0
    for file, part in zip(given.files, marked(ask, given.files), strict=True):
        with skipped.over(file):
            with within(given, FilePosition(file)):
                step = taken(ask, engine, given, file, part, tick, time + 1)
            time += 1
            yield step


def _verdicts(counts: dict[str, int]) -> dict[str, int]:
    """Count events by verdict, and the keys that full contents deleted, if there are any."""
    absent = counts.pop("absent", 0)
    return {**Verdicts.of(counts).counts, **({"absent": absent} if absent else {})}


def _net(engine: dd.Engine) -> pa.Table:
    """Read the final counts, sorted by group if groups can be sorted."""
    counts = engine.read(OUT).drop_columns([DIFF])
    groups: list[Any] = [(name, "ascending") for name in counts.column_names[:-1]]
    try:
        return counts.take(pc.sort_indices(counts, groups)) if groups else counts
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # lists, structs
        return counts


def target(ask: Ask, flow: dd.Flow, given: FilesSource) -> Target:
    """Open the output of the rows.  Raises `OutputExists`, `UnwritableOutput`."""
    rows = flow.outputs[OUT].schema
    schema = rows if ask.net else updates_schema(rows, flow.time_type)
    if ask.output is None and sys.stdout.isatty():
        return Preview(schema)
    return Piped() if ask.output in (None, "-") else _file(Path(str(ask.output)), schema, ask, given)


def _sides(ask: Ask, flow: dd.Flow, given: FilesSource) -> dict[str, FileOutput]:
    """Open the files for the outputs that ``--stale`` and ``--on-bad`` add, by output."""
    out = dict[str, FileOutput]()
    for name, (_, schema) in flow.side_outputs().items():
        path = ask.bad_output if name == f"{INPUT}.bad" else ask.stale_output
        if path is not None:
            out[name] = _file(path, updates_schema(schema, flow.time_type), ask, given)
    return out


def _file(path: Path, schema: pa.Schema, ask: Ask, given: FilesSource) -> FileOutput:
    """Open an output file that is no input."""
    if path.exists() and any(path.samefile(file) for file in given.files if os.path.exists(file)):
        raise OutputExists(f"write {path}", "it is one of the inputs", "choose another name")
    return open_output(path, schema, ask.overwrite)

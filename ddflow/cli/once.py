"""One run of `diff`, `count` or `replace` without a state: files through a flow into an output.

Guarantees: the output gets its name only when it is complete. ddflow warns if files of upserts look like full files,
because each has nearly all keys of those before it.

>>> run.__name__
'run'

>>> looks = FullLike()
>>> for rows, keys in ((100, 100), (101, 103), (99, 104)):
...     looks.saw(rows, keys)
>>> looks.hint("write --full")
'each file names most keys of those before it, and 5 keys are not in the last one: where each file holds all rows, so \
that these are gone, write --full'
>>> looks.saw(30, 130)
>>> looks.hint("write --full")
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import ddflow as dd
from ddflow.cli.arguments import Ask
from ddflow.cli.continued import Course, check_at, declared, epochs, in_times_of, opened, state_columns, told
from ddflow.cli.output import Done, Piped, Preview
from ddflow.cli.plan import INPUT, OUT, check_usage, names, planned, say_bad
from ddflow.cli.reading import Skipped, marked, readable, taken, within
from ddflow.cli.say import Tick, progress, say
from ddflow.columns.names import DIFF
from ddflow.columns.schema import updates_schema
from ddflow.connectors.files import FileOutput, FilePosition, FilesSource, open_output
from ddflow.dataflow.inflow import add
from ddflow.dataflow.verdicts import Verdicts
from ddflow.errors import OutputExists, PlanChanged
from ddflow.errors.base import replace_texts
from ddflow.storage.address import public

KNOWN, NAMED, LEAST = 0.9, 0.5, 20
"""The share of a file's rows whose keys are known, that of the keys which it names, and rows of a file; at least."""
FULL: Final = {True: "add --full", False: "use ddflow replace"}
"""What to do, by whether rows are counted."""


class FullLike:
    """``looked``: whether it may be so at all."""

    def __init__(self, looked: bool = True) -> None:
        self.files, self.rows, self.keys, self.alike = 0, 0, 0, looked

    def saw(self, rows: int, keys: int) -> None:
        """Count a file's rows, and the keys after it."""
        known = rows - (keys - self.keys)
        if rows < LEAST or (self.files and (known < KNOWN * rows or rows < NAMED * self.keys)):
            self.alike = False
        self.files, self.rows, self.keys = self.files + 1, rows, keys

    def hint(self, remedy: str) -> str | None:
        """Return a hint for the end of the run; None if the files do not look full."""
        gone = self.keys - self.rows
        if not self.alike or self.files < 2 or gone <= 0:
            return None
        left = f"{gone:,} keys are" if gone > 1 else "1 key is"
        found = f"each file names most keys of those before it, and {left} not in the last one"
        these = "these are" if gone > 1 else "it is"
        return f"{found}: where each file holds all rows, so that {these} gone, {remedy}"


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
        raise replace_texts(error, fix=error.fix + f"; {more}") from None


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

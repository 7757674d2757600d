"""Run `diff`, `count` or `replace`: read files, feed them to a flow, and write the output.

`FileRun` opens the files and builds the flow. `FileFeed` ingests the files. `run_files` connects `FileRun` and
`FileFeed` to the output. With a state each file is an epoch. If a file is passed again, its epoch is not ingested
again, and its rows are written again.

Guarantees: an output gets its name only when it is complete. A run that stops halfway on a state reports the committed
epochs and how to continue. A new column of the files is added to the state.

>>> load_state_input("there/is/no/state", "owner") is None
True
"""

import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import typer

import ddflow as dd
from ddflow.cli.arguments import VerbOptions
from ddflow.cli.input_files import (
    FileBatches,
    SkippedFiles,
    add_error_locations,
    build_run_file_options,
    read_files_ahead,
    read_rows,
    warn_of_text_columns,
)
from ddflow.cli.output import FileRunResult, FullFileHint, JsonLines, RowOutput, WrittenEpochs, open_row_output
from ddflow.cli.plan import (
    INPUT,
    OUT,
    check_conflicting_options,
    find_message_columns,
    parse_column_names,
    parse_format,
    plan_flow,
    report_bad_messages,
)
from ddflow.cli.say import Tick, say, show_progress
from ddflow.columns.casts import parse_types
from ddflow.columns.names import DIFF
from ddflow.columns.schema import build_updates_schema
from ddflow.connectors.files import FileOutput, FilePosition, MultiFileReader, open_files, open_output
from ddflow.dataflow.inflow import add_to_counts
from ddflow.dataflow.result import Verdicts
from ddflow.engine.lineage.log_parts import MARKS
from ddflow.engine.replace import AbsenceLimit, check_time_is_numeric
from ddflow.errors import OutputExists, PlanChanged, SpecError, StateRefused
from ddflow.errors.base import replace_error_texts
from ddflow.plan.evolve import build_plan_with_time_type
from ddflow.plan.inputs.input import Binding
from ddflow.plan.text.codec import read_bindings
from ddflow.storage.address import mask_address
from ddflow.storage.manifest import Epoch, load_newest_manifest
from ddflow.storage.opening import open_existing_store
from ddflow.time import CLOSED, INT64, NEVER, Time, find_time_type, time_to_int64, time_to_value
from ddflow.tools.merge_on_read import feed_log_part

FULL: Final = {True: "add --full", False: "use ddflow replace"}
"""The two hints for files that look like full contents: for runs with counts, and for runs without counts."""
ASK: Final = "pass the {what} of the file: --at '{later}'; one file for each run"
"""The hint for a file without a time."""


class FileRun:
    """The opened files of a command line, and the flow that the command line describes.

    ``bound``: the input of the state; None without a state and for a new state. ``skipped``: the skipped files.
    """

    def __init__(self, ask: VerbOptions) -> None:
        self.ask, self.skipped = ask, SkippedFiles(ask.skip_bad_files)
        self.bound = None if ask.state is None else load_state_input(ask.state, ask.trust)
        self.files = self._open_files()
        _check_at_option(ask, self.files.files)
        self.flow = self._build_flow()

    def _open_files(self) -> MultiFileReader:
        """Open the files with their columns and the columns of the state; report new and missing columns."""
        ask, how = self.ask, build_run_file_options(self.ask, self.skipped)
        if parse_format(ask.format) is None:
            required = [*parse_column_names(ask.key), *([ask.time] if ask.time else [])]
            files = open_files(ask.inputs, parse_types(ask.types or ()), required, self._state_columns(), how)
        else:
            files = open_files(ask.inputs, how=how)
        self.skipped.check_files_remain(files.files)
        if files.changes:
            say(f"columns: {files.changes.summary}", err=True)
        warn_of_text_columns(files.doubts)
        return files

    def _state_columns(self) -> pa.Schema | None:
        if self.bound is None:
            return None
        return self.bound.message_target.columns if self.bound.format is not None else self.bound.schema

    def _build_flow(self) -> dd.Flow:
        """Build the flow with the time type of its state; a new state takes the type of ``--at``."""
        ask, columns = self.ask, self._state_columns()
        if ask.format is None or parse_format(ask.format) is None:
            columns = self.files.schema
        elif columns is None:
            columns = find_message_columns(self.files, ask.format, parse_types(ask.types or ()))
        flow = plan_flow(ask, columns)
        kind = INT64 if self.bound is None else self.bound.time_type
        if kind == INT64 and ask.at is not None:
            kind = find_time_type(_parse_time(ask.at)) or kind
        return flow if kind == INT64 else dd.Flow.of(build_plan_with_time_type(flow, kind)[0])

    def open_engine(self) -> dd.Engine:
        """Open the engine, on the state if there is one. Raises like `Flow.open`."""
        ask, trust = self.ask, self.ask.trust
        if ask.state is None:
            return self.flow.open()
        choices: dict[str, Any] = {"memory": ask.memory, "retain": ask.retain, "trust": trust, "commit_every": None}
        try:
            return self.flow.open(ask.state, **choices)
        except PlanChanged as error:
            if self.bound is not None:
                raise
            verb = f"ddflow run FLOW.PY --state {shlex.quote(mask_address(ask.state))}"
            raise replace_error_texts(
                error, fix=error.fix + f"; if your own flow made the state, continue with it: {verb}"
            ) from None

    def open_output(self) -> RowOutput:
        """Open the output to which the rows are written. Raises `OutputExists`, `UnwritableOutput`."""
        ask, rows = self.ask, self.flow.outputs[OUT].schema
        if ask.output not in (None, "-"):
            self._refuse_input_as_output(Path(str(ask.output)))
        return open_row_output(
            ask.output, rows if ask.net else build_updates_schema(rows, self.flow.time_type), ask.overwrite
        )

    def open_side_outputs(self) -> dict[str, FileOutput]:
        """Open the files of ``--stale`` and ``--on-bad``. The result maps the outputs of these options to the files."""
        out = dict[str, FileOutput]()
        for name, (_, schema) in self.flow.side_outputs().items():
            path = self.ask.bad_output if name == f"{INPUT}.bad" else self.ask.stale_output
            if path is not None:
                self._refuse_input_as_output(path)
                out[name] = open_output(path, build_updates_schema(schema, self.flow.time_type), self.ask.overwrite)
        return out

    def _refuse_input_as_output(self, path: Path) -> None:
        if path.exists() and any(path.samefile(file) for file in self.files.files if os.path.exists(file)):
            raise OutputExists(f"write {path}", "it is one of the inputs", "choose another name")


class FileFeed:
    """Feed the files of a run to an engine. ``written`` records the progress in epoch mode."""

    def __init__(self, run: FileRun, engine: dd.Engine, tick: Tick, written: WrittenEpochs) -> None:
        self.run, self.ask, self.files, self.engine = run, run.ask, run.files, engine
        self.tick, self.written, self.warned, self.done = tick, written, False, 0
        self.first = None if engine.durable is None else run.ask.epoch or self._find_epoch_at() or engine.epoch + 1

    @property
    def next_epoch(self) -> int | None:
        """The epoch number of the next file, or None if the run has no state."""
        return None if self.first is None else self.first + self.done

    def ingest_files(self, replayed: Sequence[Any] | None = None, least: int = NEVER) -> Iterator[dd.Step]:
        """Ingest each file and yield the steps of the file. With a state, each file is a committed epoch.

        An epoch is committed before its last step is yielded. ``replayed`` gives the files as parts of a log. If
        ``replayed`` is not given, the options decide whether a file has full contents. ``least`` is a lower bound for
        the time of the last file in epoch mode.
        """
        parts, skipped, files = replayed, self.run.skipped, self.files.files
        if parts is None:
            parts = [dd.Full(file, self.ask.scope) if self.ask.whole else file for file in files]
        if self.ask.holds_back and not any(isinstance(part, MARKS) for part in parts):
            for ready in read_files_ahead(self.files, skipped, self.tick):
                yield from self._push_file(ready)
                self.done += 1
            return
        for n, (file, part) in enumerate(zip(files, parts, strict=True), 1):
            receipt = self._find_receipt()
            if receipt is None and replayed is None:
                self._check_file_time(file)
            time = self.engine.last + 1 if self.engine.last > NEVER else 1
            time = receipt.calls[0].time if receipt is not None else max(time, least if n == len(files) else time)
            with skipped.skip_file_on_error(file):
                step = self._step_file(file, part, time)
                if self.next_epoch is not None:
                    self.warned = self.warned or (receipt is None and self._warn_of_repeated_rows(file, step))
                    self.written.committed = self.next_epoch, files[n:]
                self.done += 1
                yield step

    def _step_file(self, file: str, part: Any, time: int) -> dd.Step:
        """Ingest a file of epoch mode as one step, and commit it. ``part``: the file, or a mark such as `dd.Full`."""
        engine, ask = self.engine, self.ask
        reader = pa.RecordBatchReader.from_batches(self.files.columns(file), read_rows(self.files, file, self.tick))
        part = replace(part, rows=reader) if isinstance(part, MARKS) else reader
        with add_error_locations(self.files, FilePosition(file)), engine.calls.attribute_rows_to_files([file]):
            at = time_to_value(time, engine.flow.time_type) if ask.at is None else _parse_time(ask.at)
            with warnings.catch_warnings(action="ignore"):  # the run has already reported missing columns
                step = feed_log_part(
                    engine, INPUT, part, at, self.next_epoch, AbsenceLimit(ask.max_absent, ask.allow_empty)
                )
        self._flush_epoch()
        return step

    def _push_file(self, ready: FileBatches) -> Iterator[dd.Step]:
        """Push a file of hold-back mode and commit it. After the last file, close every time that has occurred."""
        engine, receipt, row, calls = self.engine, self._find_receipt(), 0, 0
        for batch in ready.batches:
            yield self._push_rows(ready.file, row, {INPUT: batch})
            row, calls = row + batch.num_rows, calls + 1
        if not calls:  # a file without rows is an epoch as well
            yield self._push_rows(ready.file, row, {})
            calls = 1
        if receipt is not None:
            for call in receipt.calls[calls:]:
                yield engine.advance_to(call.time, epoch=self.next_epoch)
            return
        until = self._find_close_time(ready)
        closed = None if until is None else engine.advance_to(until, epoch=self.next_epoch)
        self._flush_epoch()
        if closed is not None:
            yield closed

    def _push_rows(self, file: str, row: int, rows: dict[str, Any]) -> dd.Step:
        with (
            add_error_locations(self.files, FilePosition(file, row)),
            self.engine.calls.attribute_rows_to_files([file]),
        ):
            return self.engine.push(rows, epoch=self.next_epoch)

    def _find_close_time(self, ready: FileBatches) -> int | None:
        """Return the time before which all times close after a file, or None if no time closes.

        Without a state, the last file closes all times.
        """
        if not ready.last or self.ask.state is None:
            return CLOSED if ready.last else None
        seen = self.engine.dataflow.admissions[INPUT].greatest
        return seen + 1 if self.ask.lateness is None and seen >= self.engine.frontier else None

    def _flush_epoch(self) -> None:
        if self.engine.durable is not None:
            self.engine.flush()

    @property
    def _receipts(self) -> Sequence[Epoch]:
        """The receipts of those committed epochs whose rows can be written again."""
        return () if self.engine.durable is None else self.engine.durable.log.manifest_log.manifest.receipts

    def _find_receipt(self) -> Epoch | None:
        """Find the receipt of the next file's epoch, if that epoch is already committed."""
        return next((each for each in self._receipts if each.epoch == self.next_epoch), None)

    def _find_epoch_at(self) -> int | None:
        """Return the committed epoch with the time of ``--at``, or None. So the same command line can run again."""
        kind, at = self.engine.flow.time_type, None if self.ask.at is None else _parse_time(self.ask.at)
        if at is None or find_time_type(at) != kind:
            return None
        time = time_to_int64("--at", at, CLOSED, kind)
        return next((each.epoch for each in self._receipts if [call.time for call in each.calls] == [time]), None)

    def _check_file_time(self, file: str) -> None:
        """Refuse a file if the state's times are not numbers, and ``--at`` is missing or not of their type."""
        kind, at = self.engine.flow.time_type, self.ask.at
        if (
            self.engine.last == NEVER
            and kind != INT64
            and (None if at is None else find_time_type(_parse_time(at))) != kind
        ):
            found = f"the times of the state's steps are {kind}, because the first file, which was refused, said so"
            remedy = "pass a time of this type: --at TIME; or create a new state"
            raise SpecError(f"ingest {file}", found, remedy)
        if at is None:
            check_time_is_numeric(self.engine.calls, f"ingest {file}", ASK)

    def _warn_of_repeated_rows(self, file: str, step: dd.Step) -> bool:
        """Warn if a file changed something although an earlier epoch had the same rows.

        Return whether the warning was given.
        """
        engine, state = self.engine, self.ask.state
        assert engine.durable is not None and state is not None
        changed = step.verdicts.applied or step.verdicts.absent
        same = engine.durable.find_epoch_of_same_rows() if changed else None
        if same is not None:
            back = f"ddflow rollback {shlex.quote(mask_address(state))} --to-epoch {engine.epoch - 1}"
            say(
                f"{file}, now epoch {engine.epoch}, has the same rows as epoch {same}; if you did not intend this, go "
                f"back at once ({back}), and pass the same files with --epoch {same}",
                err=True,
            )
        return same is not None


def run_files(ask: VerbOptions) -> None:
    """Run ``diff``, ``count`` or ``replace``, and report the result. Raises `DdflowError`, `typer.BadParameter`."""
    check_conflicting_options(ask)
    began, request = perf_counter(), FileRun(ask)
    files, skipped = request.files, request.skipped
    out, sides = request.open_output(), request.open_side_outputs()
    updates, counts = 0, dict[str, int]()
    with ExitStack() as stack:
        stack.callback(files.close)
        engine = stack.enter_context(request.open_engine())
        written = WrittenEpochs(engine.epoch)
        stack.enter_context(written.explain_stop(engine))
        for each in (out, *sides.values()):
            stack.enter_context(each)
        stack.enter_context(written.keep_partial_outputs([out, *sides.values()]))
        shown = stack.enter_context(show_progress(files.rows, isinstance(out, JsonLines) and sys.stdout.isatty()))

        def tick(rows: int, updates: int) -> None:
            skipped.rows += rows
            shown(rows, updates)

        looks = FullFileHint(not (ask.whole or ask.holds_back or ask.state or ask.tombstone or ask.delete or ask.merge))
        for step in FileFeed(request, engine, tick, written).ingest_files():
            if looks.alike:
                looks.add_file(sum(step.verdicts.counts.values()), engine.dataflow.graph.arrangements[INPUT].keys)
            with written.write_epoch():
                if not ask.net:
                    out.write(step[OUT])
                for name, side in sides.items():
                    side.write(step[name])
            updates += step[OUT].num_rows
            add_to_counts(counts, {**step.verdicts.counts, "absent": step.verdicts.absent})
            tick(0, step[OUT].num_rows)
        if ask.net:
            out.write(_read_final_counts(engine))
        epoch, pending = engine.epoch, engine.verdicts.pending
        assert ask.state is not None or not pending, f"{pending} events have no verdict"
        skipped.check_files_remain(files.files)
    inputs = [file for file in files.files if file not in skipped]
    done = FileRunResult(
        inputs,
        rows=skipped.rows,
        epochs=None if ask.holds_back else len(inputs),
        updates=updates,
        written=out.written,
        verdicts=_count_verdicts(counts),
        seconds=perf_counter() - began,
        output=str(out.path) if isinstance(out, FileOutput) else None,
        epoch=None if ask.state is None else epoch,
        pending=pending,
        skipped=dict(skipped),
    )
    if ask.as_json:
        say(json.dumps(done.as_json()))
        return
    say(done.text(), err=True)
    report_bad_messages(counts.get("bad", 0), ask.bad_output)
    if (hint := looks.text(FULL[ask.counts])) is not None:
        say(hint, err=True)


def _count_verdicts(counts: dict[str, int]) -> dict[str, int]:
    """Count events by verdict, and count the keys that full contents deleted, if there are any."""
    absent = counts.pop("absent", 0)
    return {**Verdicts.of(counts).counts, **({"absent": absent} if absent else {})}


def _read_final_counts(engine: dd.Engine) -> pa.Table:
    """Read the final counts. The counts are sorted by group if the types of the group columns can be sorted."""
    counts = engine.read(OUT).drop_columns([DIFF])
    groups: list[Any] = [(name, "ascending") for name in counts.column_names[:-1]]
    try:
        return counts.take(pc.sort_indices(counts, groups)) if groups else counts
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # lists and structs have no order
        return counts


def load_state_input(state: str, trust: str) -> Binding | None:
    """Load the input `INPUT` of a state; return None if the state does not exist or has no such input."""
    try:
        with open_existing_store(state, trust=trust) as store:
            manifest = load_newest_manifest(store)
            return None if manifest is None else read_bindings(manifest.plan, store.where).get(INPUT)
    except StateRefused:
        return None  # opening it for writing creates it, or explains the refusal


def _check_at_option(ask: VerbOptions, files: Sequence[str]) -> None:
    """Raise `typer.BadParameter` if ``--at`` is not a time, or if the run has more than one step."""
    if ask.at is None:
        return
    if ask.holds_back:
        raise typer.BadParameter("--at is the time of a step, but with --time each event has its own: omit one of them")
    if len(files) != 1:
        raise typer.BadParameter(
            f"--at is the time of one file, but there are {len(files)}: pass one file for each run"
        )
    if find_time_type(_parse_time(ask.at)) is None:
        raise typer.BadParameter(
            f"--at {ask.at} is not a time: write a day (2026-11-26), a timestamp (2026-11-26T12:00Z) or a whole number"
        )


def _parse_time(text: str) -> Time:
    """Parse a time into the value that Python code would pass."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text

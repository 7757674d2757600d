"""A run that continues a state: its files become the next epochs, and a stop says what was committed and how to go on.

Guarantees: a file that was committed is not read again. The columns of the files become those of the state. A run that
stops halfway leaves a state that the same command continues.

>>> state_columns("there/is/no/state", "owner") is None
True
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import typer

import ddflow as dd
from ddflow.cli.arguments import Ask
from ddflow.cli.plan import INPUT, columns_of, message_format
from ddflow.cli.reading import Ready, Skipped, asked_how, marked, readable, say_doubts, taken, within
from ddflow.cli.say import Tick, say
from ddflow.columns.casts import parse_types
from ddflow.connectors.files import FileOutput, FilePosition, FilesSource, open_files
from ddflow.engine.epoch_log import KEPT
from ddflow.engine.lineage.log_parts import MARKS
from ddflow.engine.replace import check_counted
from ddflow.engine.run.signals import waiting
from ddflow.errors import DdflowError, OutputExists, SpecError, StateRefused, UnwritableOutput
from ddflow.errors.base import replace_texts
from ddflow.plan.evolve import timed
from ddflow.plan.inputs.input import Binding
from ddflow.plan.text.codec import bounds
from ddflow.storage.address import public
from ddflow.storage.manifest import Epoch, newest
from ddflow.storage.opening import opened_store
from ddflow.time import INT64, NEVER, Time, as_value, type_of

STOPS = (DdflowError, KeyboardInterrupt, SystemExit)


class Course:
    """The progress of a run.  ``before``: the state's epoch when it began; ``epoch``: the last one whose rows were
    written; ``rest``: the files behind; ``kept``: where the rows are.

    >>> from ddflow.errors import NullKey
    >>> class Half:
    ...     epoch = 3
    >>> with told(Half, Course(3)):
    ...     Half.epoch = 5
    ...     raise NullKey("rows for 'input'", "the key is null", "mend them")
    Traceback (most recent call last):
        ...
    ddflow.errors.NullKey: rows for 'input': the key is null; mend them; epochs 4 to 5 are committed: the same files ...
    """

    def __init__(self, before: int) -> None:
        self.before = self.epoch = before
        self.rest: Sequence[str] = ()
        self.kept: list[str] = []
        self.given: tuple[int, Sequence[str]] = (before, ())
        """The epoch that is committed now, and the files behind it."""
        self.writing = False

    @contextmanager
    def writes(self) -> Iterator[None]:
        """Write all rows of an epoch: a signal waits until that is done."""
        with waiting():
            self.writing = True
            yield
            self.writing = False
            self.epoch, self.rest = self.given

    @contextmanager
    def keeping(self, outputs: Iterable[Any]) -> Iterator[None]:
        """Complete output files under new names if a run stops between two epochs."""
        try:
            yield
        except STOPS:
            for each in outputs if self.epoch > self.before and not self.writing else ():
                if isinstance(each, FileOutput) and each.written:
                    with suppress(OutputExists, UnwritableOutput):
                        self.kept.append(str(each.keep(f"epochs-{self.before + 1}-{self.epoch}")))
            raise

    def said(self, epoch: int) -> str:
        """Tell how to go on from the epoch of the state."""
        first = self.before + 1
        done = f"epochs {first} to {epoch} are committed" if epoch > first else f"epoch {first} is committed"
        if self.kept and self.rest and not self.writing:
            of = f"epochs {first} to {self.epoch}" if self.epoch > first else f"epoch {first}"
            there = f"the rows of {of} are in {', '.join(self.kept)}"
            more = f" and the {len(self.rest) - 1:,} behind it" if len(self.rest) > 1 else ""
            return f"{done}, {there}: go on with {self.rest[0]}{more}, --epoch {self.epoch + 1}, into another file"
        again = max(first, epoch - KEPT + 1)
        gone = "; rows of older epochs are not given again, and the state has their outcome" if again > first else ""
        files = "the same files" if again == first else f"the files from the {again - first + 1:,}th on"
        return f"{done}: {files} with --epoch {again} give their rows again, and go on{gone}"


@contextmanager
def told(engine: Any, course: Course) -> Iterator[None]:
    """Say which epochs were committed if a run is refused or stopped."""
    try:
        yield
    except STOPS as error:
        if engine.epoch == course.before:
            raise
        more = course.said(engine.epoch)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(more) from None
        if isinstance(error, SystemExit):  # SIGTERM, which says nothing of itself
            say(f"ddflow: terminated; {more}", err=True)
            raise
        raise replace_texts(error, fix=error.fix + f"; {more}") from None


ASK: Final = "say which {what} the file is of: --at '{later}'; one file for each run"
"""The fix for a file without a time."""


def opened(ask: Ask, required: list[str], skipped: Skipped) -> FilesSource:
    """Open the files of a run, in their columns and the columns of its state; says which columns come up and go.

    Raises as `open_files` does.
    """
    known = None if ask.state is None else state_columns(ask.state, ask.trust)
    if message_format(ask.format) is None:
        given = open_files(ask.inputs, parse_types(ask.types or ()), required, known, asked_how(ask, skipped))
    else:
        given = open_files(ask.inputs, how=asked_how(ask, skipped))
    skipped.check(given.files)
    if given.changes:
        say(f"columns: {given.changes.text}", err=True)
    say_doubts(given.doubts)
    return given


def declared(ask: Ask, given: FilesSource) -> pa.Schema:
    """Return the columns of the rows of a run, from its files; for messages, from its state or the messages."""
    if ask.format is None or message_format(ask.format) is None:
        return given.schema
    known = None if ask.state is None else state_columns(ask.state, ask.trust)
    return columns_of(given, ask.format, parse_types(ask.types or ())) if known is None else known


def in_times_of(ask: Ask, flow: dd.Flow) -> dd.Flow:
    """Give a flow the type of times of its state; for a new state, the type of ``--at``."""
    bound = None if ask.state is None else _state_input(ask.state, ask.trust)
    kind = INT64 if bound is None else bound.time_type
    if kind == INT64 and ask.at is not None:
        kind = type_of(_number(ask.at)) or kind
    return flow if kind == INT64 else dd.Flow.of(timed(flow, kind)[0])


def check_at(ask: Ask, files: Sequence[str]) -> None:
    """Raise `typer.BadParameter` if ``--at`` is no time, or if the run has more than one step."""
    if ask.at is None:
        return
    if ask.held_back:
        raise typer.BadParameter("--at is the time of a step, and with --time each event has its own: leave one out")
    if len(files) != 1:
        raise typer.BadParameter(f"--at is the time of one file, and there are {len(files)} of them: give one a run")
    if type_of(_number(ask.at)) is None:
        raise typer.BadParameter(
            f"--at {ask.at} is no time: write a day (2026-11-26), a moment (2026-11-26T12:00Z) or a whole number"
        )


def _number(text: str) -> Time:
    """Parse a time as Python takes it."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def state_columns(state: str, trust: str) -> pa.Schema | None:
    """Return the columns of our input in a state; None if there is no state yet, or another one."""
    bound = _state_input(state, trust)
    if bound is None:
        return None
    return bound.target.columns if bound.format is not None else bound.schema


def _state_input(state: str, trust: str) -> Binding | None:
    """Return our input in a state; None if there is no state yet, or another one."""
    try:
        with opened_store(state, trust=trust) as store:
            manifest = newest(store)
            found = {} if manifest is None else bounds(manifest.plan, store.where)
    except StateRefused:
        return None  # made, or refused in full words, when it is opened to be written to
    return found.get(INPUT)


def epochs(
    engine: dd.Engine,
    given: FilesSource,
    ask: Ask,
    tick: Tick,
    skipped: Skipped,
    least: int = NEVER,
    parts: Sequence[Any] | None = None,
    course: Course | None = None,
) -> Iterator[dd.Step]:
    """Take in each file as an epoch of a state; commits it before it yields its last step.  A skipped file is no epoch.

    ``least``: the time of the last file, in epoch mode, is no less.  ``parts``: the files, as they are marked; by
    default as the options say.  ``course``: learns, in epoch mode, how far the run came.
    """
    replays = parts is not None
    parts = marked(ask, given.files) if parts is None else parts
    course = course or Course(engine.epoch)
    number, said = engine.epoch + 1 if ask.epoch is None else ask.epoch, False
    if ask.held_back and not any(isinstance(part, MARKS) for part in parts):
        for ready in readable(given, skipped, tick):
            yield from _push_file(engine, given, ready, number, ready.last and ask.lateness is None)
            number += 1
        return
    for n, (file, part) in enumerate(zip(given.files, parts, strict=True), 1):
        receipt, time = _receipt(engine, number), engine.last + 1 if engine.last > NEVER else 1
        if receipt is None and not replays and engine.last == NEVER:
            _check_first(ask, file, engine.flow.time_type)
        if receipt is not None:
            time = receipt.calls[0].time
        elif not replays and ask.at is None:
            check_counted(engine.calls, f"take in {file}", ASK)
        elif file == given.files[-1]:
            time = max(time, least)
        with skipped.over(file):
            with within(given, FilePosition(file)):
                at = as_value(time, engine.flow.time_type) if ask.at is None else _number(ask.at)
                step = taken(ask, engine, given, file, part, tick, at, number)
            engine.flush()
            if receipt is None and not said:
                said = _say_again(engine, ask, file, step)
            course.given = number, given.files[n:]
            number += 1
            yield step


def _check_first(ask: Ask, file: str, kind: pa.DataType) -> None:
    """Raise `SpecError` if a time has another type than the times given with a first file, which was refused."""
    if kind != INT64 and (None if ask.at is None else type_of(_number(ask.at))) != kind:
        found = f"the times of the state's steps are {kind}, as was said with a file that was refused"
        raise SpecError(
            f"take in {file}", found, "say of this type what its time is: --at TIME; or begin another state"
        )


def _push_file(engine: dd.Engine, given: FilesSource, ready: Ready, number: int, closes: bool) -> Iterator[dd.Step]:
    """Push a file of hold-back mode as one epoch, and close the times that were seen."""
    receipt, row, calls = _receipt(engine, number), 0, 0
    for batch in chain(ready.batches, [None]):
        if batch is None and calls:
            break
        # A file without rows is an epoch, too.
        rows: dict[str, Any] = {} if batch is None else {INPUT: batch}
        with within(given, FilePosition(ready.file, row)), engine.calls.reading([ready.file]):
            step = engine.push(rows, epoch=number)
        row, calls = row + (0 if batch is None else batch.num_rows), calls + 1
        yield step
    if receipt is not None:
        for call in receipt.calls[calls:]:
            yield engine.advance_to(call.time, epoch=number)
        return
    seen = engine.dataflow.admissions[INPUT].greatest
    closed = engine.advance_to(seen + 1, epoch=number) if closes and seen >= engine.frontier else None
    engine.flush()
    if closed is not None:
        yield closed


def _say_again(engine: dd.Engine, ask: Ask, file: str, step: dd.Step) -> bool:
    """Warn if a file changed something and an earlier epoch had its rows; return whether it did."""
    assert engine.durable is not None and ask.state is not None
    changed = step.verdicts.applied or step.verdicts.absent
    same = engine.durable.same_rows() if changed else None
    if same is not None:
        back = f"ddflow rollback {shlex.quote(public(ask.state))} --to-epoch {engine.epoch - 1}"
        say(
            f"{file}, epoch {engine.epoch} now, has the rows of epoch {same} again; if that was not meant, go back "
            f"at once ({back}), and give the same files with --epoch {same}",
            err=True,
        )
    return same is not None


def _receipt(engine: dd.Engine, number: int) -> Epoch | None:
    """Find the receipt of a committed epoch."""
    assert engine.durable is not None
    return next((each for each in engine.durable.log.manifest_log.manifest.receipts if each.epoch == number), None)

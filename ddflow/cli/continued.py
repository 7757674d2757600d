"""A run that goes on from a state: its files as the next epochs, its columns as the state's.

Invariant: the same files, given as the same epochs, give the same rows, whatever was committed of them before; and
files are read as later files of the run that made the state would be. Types of text files are guessed, so a column
without a value on one day would be another type than the day before: the state's types count. Columns may stand in
another order, be missing, or be new: those go to the end. Times go on from the state's, but an epoch that is given
again has the time that it had. In hold-back mode the end of input closes the times that were seen, unless
``--lateness`` says what is closed: later files bring later events. Whatever else differs from the state's plan is
refused by `Flow.open`.

>>> from ddflow.errors import NullKey
>>> class Half:
...     epoch = 3
>>> with told(Half):
...     Half.epoch = 5
...     raise NullKey("rows for 'input'", "the key is null", "mend them")
Traceback (most recent call last):
    ...
ddflow.errors.NullKey: rows for 'input': the key is null; mend them; epochs 4 to 5 are committed: the same files ...
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa

import ddflow as dd
from ddflow.cli.messages import columns_of, message_format
from ddflow.cli.options import Ask
from ddflow.cli.plan import INPUT
from ddflow.cli.progress import Tick
from ddflow.cli.reading import Ready, Skipped, asked_how, marked, readable, say_doubts, taken, within
from ddflow.cli.say import say
from ddflow.columns.type_text import parse_types
from ddflow.connectors.files import FilePosition, FilesSource, open_files
from ddflow.engine.logs import MARKS
from ddflow.errors import DdflowError, StateRefused
from ddflow.plan.bind import Bound
from ddflow.plan.rebuild import bounds
from ddflow.storage.manifest import Epoch, newest
from ddflow.storage.opening import opened_store
from ddflow.time import NEVER


def opened(ask: Ask, required: list[str], skipped: Skipped) -> FilesSource:
    """The files of a run, in their columns and those of its state; which come up and go is said.

    Raises what `open_files` raises.
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
    """The columns of the rows of a run: those of its files, or, of messages, of its state or of what these show."""
    if ask.format is None or message_format(ask.format) is None:
        return given.schema
    known = None if ask.state is None else state_columns(ask.state, ask.trust)
    return columns_of(given, ask.format, parse_types(ask.types or ())) if known is None else known


def state_columns(state: str, trust: str) -> pa.Schema | None:
    """The columns of our input in a state; None where there is no state yet, or another one."""
    try:
        with opened_store(state, trust=trust) as store:
            manifest = newest(store)
            found = {} if manifest is None else bounds(manifest.plan, store.where)
    except StateRefused:
        return None  # made, or refused in full words, when it is opened to be written to
    if INPUT not in found:
        return None
    bound = found[INPUT]
    return bound.target.columns if isinstance(bound, Bound) and bound.format is not None else bound.schema


def epochs(
    engine: dd.Engine,
    given: FilesSource,
    ask: Ask,
    tick: Tick,
    skipped: Skipped,
    least: int = NEVER,
    parts: Sequence[Any] | None = None,
) -> Iterator[dd.Step]:
    """Each file as an epoch of a state, committed before its last step is given out; a skipped one is none.

    ``least``: the time of the last file, in epoch mode, is no less.  ``parts``: the files, as they are marked; by
    default as is asked for.
    """
    parts = marked(ask, given.files) if parts is None else parts
    number = engine.epoch + 1 if ask.epoch is None else ask.epoch
    if ask.held_back and not any(isinstance(part, MARKS) for part in parts):
        for ready in readable(given, skipped, tick):
            yield from _pushed(engine, given, ready, number, ready.last and ask.lateness is None)
            number += 1
        return
    for file, part in zip(given.files, parts, strict=True):
        receipt, time = _receipt(engine, number), engine.last + 1 if engine.last > NEVER else 1
        if receipt is not None:
            time = receipt.calls[0].time
        elif file == given.files[-1]:
            time = max(time, least)
        with skipped.over(file):
            with within(given, FilePosition(file)):
                step = taken(ask, engine, given, file, part, tick, time, number)
            engine.flush()
            number += 1
            yield step


def _pushed(engine: dd.Engine, given: FilesSource, ready: Ready, number: int, closes: bool) -> Iterator[dd.Step]:
    """A file of hold-back mode as one epoch: pushes, and what closes the times that were seen."""
    receipt, row, calls = _receipt(engine, number), 0, 0
    for batch in chain(ready.batches, [None]):
        if batch is None and calls:
            break
        # A file without rows is an epoch, too.
        rows: dict[str, Any] = {} if batch is None else {INPUT: batch}
        with within(given, FilePosition(ready.file, row)):
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


def _receipt(engine: dd.Engine, number: int) -> Epoch | None:
    """What is kept of an epoch that was committed."""
    assert engine.durable is not None
    return next((each for each in engine.durable.log.manifest_log.manifest.receipts if each.epoch == number), None)


@contextmanager
def told(engine: Any) -> Iterator[None]:
    """Say, where a run is refused or interrupted, which of its epochs were committed all the same."""
    before = engine.epoch
    try:
        yield
    except (DdflowError, KeyboardInterrupt) as error:
        if engine.epoch == before:
            raise
        again = f"epochs {before + 1} to {engine.epoch} are committed: the same files with --epoch {before + 1} give "
        again += "their rows again, and go on"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(again) from None
        raise type(error)(error.asked, error.found, f"{error.remedy}; {again}") from None

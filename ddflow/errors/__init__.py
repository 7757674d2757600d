"""Define every exception that ddflow raises on purpose: one class for each remedy.

A message has three parts: the request, the finding and the fix. Row numbers and calls in it are data (`base.py`). The
fields ``input``, ``file``, ``row``, ``offset`` and ``column`` locate the error. `ddflow errors` prints the docstrings.

>>> raise TimeWentBack("cannot advance to 4", "the frontier is already 7", "times may not go back")
Traceback (most recent call last):
    ...
ddflow.errors.TimeWentBack: cannot advance to 4: the frontier is already 7; times may not go back
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ddflow.errors.base import (
    PYTHON as PYTHON,
    CommandFix as CommandFix,
    DdflowError,
    DeclareFix as DeclareFix,
    ErrorText as ErrorText,
    ErrorTextPart as ErrorTextPart,
    EvolveFix as EvolveFix,
    FileFix as FileFix,
    Fix as Fix,
    FixSyntax as FixSyntax,
    InputTypesFix as InputTypesFix,
    Option as Option,
    Row as Row,
    TombstoneFix as TombstoneFix,
    WidenFix as WidenFix,
    format_error_text as format_error_text,
    format_location as format_location,
    mask_secrets as mask_secrets,
    shorten as shorten,
)


class SpecError(DdflowError, ValueError):
    """A spec, a plan or an option contradicts itself or the schema.

    ddflow raises this error when you build or open a flow, before it reads a row, so no state has changed.

    Remedy: change the spec; the message names the option and the valid values.
    """


class ExpressionError(DdflowError, ValueError):
    """An expression does not parse, names an unknown column, or has the wrong type.

    ddflow raises this error when you build the filter, projection or query. docs/expressions.md and docs/sql.md list
    the functions and types.

    Remedy: change the expression; the message shows the position of the problem.
    """


class NoSuchVerb(DdflowError, AttributeError):
    """A flow, a collection or a grouping has no method with the called name.

    The name is misspelled, or belongs to another library. This error is also an `AttributeError`, as is usual in
    Python.

    Remedy: call the method that the message names.
    """


class WrongMode(DdflowError, RuntimeError):
    """``step`` was called on a flow in hold-back mode, or ``push`` on a flow in epoch mode.

    A flow with ``time=`` in its upserts is in hold-back mode: call ``push``. For any other flow, call ``step``.

    Remedy: call the method that the message names, or remove ``time=`` from the spec.
    """


class PlanChanged(DdflowError, ValueError):
    """A state was opened with a plan that differs from the plan stored in the state.

    A state stores its plan. A plan with another key, order, type or formula would change the meaning of the stored
    rows. New outputs, new inputs and new nullable columns are accepted.

    Remedy: open the state with the stored plan. Or add the changed query as a new output, then drop the old output. Or
    replay the log into a new state with ``ddflow migrate``. For wider types, or to drop outputs, use ``ddflow evolve``.
    """


class MissingExtra(DdflowError, ImportError):
    """An optional dependency is not installed, or its version does not fit.

    Spark, Java, plotting and the libraries of connectors are extras.

    Remedy: run the command in the message, such as ``pip install 'ddflow[kafka]'``.
    """


class NotInvariant(DdflowError, AssertionError):
    """The result of a spec depends on how its events are cut into calls, or on their order of arrival.

    ``dd.testing`` found a case where the results differ. The message shows a small set of events with different
    results.

    Remedy: fix the merger or the aggregate. If the different results are intended, say so where you use the spec.
    """


class MergerFailed(DdflowError, ValueError):
    """Your merger or transition function raised an exception, or returned a value that is not allowed.

    The whole step was refused.

    Remedy: fix the function; the message has the rows that it received.
    """


class AggregateFailed(DdflowError, ValueError):
    """A function of a `ddflow.Aggregate` raised an exception.

    The whole step was refused.

    Remedy: fix the function, and test it with ``dd.testing.aggregate_laws``.
    """


class IllegalTransition(DdflowError, ValueError):
    """A machine has no transition for a state and a symbol, or a transition leads to an undefined state.

    The whole step was refused.

    Remedy: add the transition, or give the machine a state for illegal events (docs/machines.md).
    """


class SchemaMismatch(DdflowError, ValueError):
    """The columns or types of a batch differ from those of the input, or the declared type cannot represent a value.

    ddflow matches columns by name, casts values only without loss, and never parses text.

    Remedy: change the batch or the declaration; the message has the column, the row, the value, and a type that
    holds the value.
    """


class NotArrow(DdflowError, TypeError):
    """The rows that you passed are not Arrow data, a list of dicts or a dict of lists.

    ddflow accepts tables, batches and readers of Arrow, pandas, Polars and DuckDB, datasets, and paths of files.

    Remedy: convert the rows to one of these types.
    """


class BadMessage(DdflowError, ValueError):
    """The input's format cannot read a message.

    The error names the offset of the message and the reason. The whole call was refused, so the messages before the bad
    message were not ingested either.

    Remedy: fix the source. On Spark, filter out the message by its offset. Or create a new state with ``on_bad="drop"``
    in the format: bad messages are counted as ``bad``, and written to the output ``<input>.bad``.
    """


class NullKey(DdflowError, ValueError):
    """An event has no key: one of its key columns is null.

    By default a null key is a mistake, so the whole call is refused.

    Remedy: set the key in the event; or choose ``null_key="drop"`` to count the event as ``bad``, or ``"keep"`` to
    treat null like any other value.
    """


class TieRefused(DdflowError, ValueError):
    """Two events of a key have the same order, and the spec says ``tie="error"``.

    The two events may be in one call, or the state may hold one of them from an earlier call.

    Remedy: make the order finer (``seq=``, more ``order_by`` columns), or choose ``tie="last"``, ``"first"`` or
    ``"greatest"``.
    """


class LateEvent(DdflowError, ValueError):
    """An event is behind the frontier or below the watermark, and the spec says ``late="error"``.

    Its time was closed, or it would touch a row that is older than the watermark. The whole call was refused.

    Remedy: choose ``late="drop"``, in hold-back mode also ``"advance"``, or a greater ``lateness=`` or delay.
    """


class TimeWentBack(DdflowError, ValueError):
    """The time of a step is not greater than the time of the last step, or a frontier moved back.

    Each step needs a greater time than the step before it. A frontier can only stay the same or grow.

    Remedy: pass a greater time, or omit the time, because ``step(rows)`` then chooses a greater time. To repeat a call
    on a durable state, pass the ``epoch=`` of the call.
    """


class DuplicateKeys(DdflowError, ValueError):
    """The full contents that you passed for an input contain a key more than once.

    ``replace`` takes a complete table, so each key must occur once.

    Remedy: remove the duplicates. Or pass the rows to ``step``, where the order decides which row wins.
    """


class TooManyAbsent(DdflowError, ValueError):
    """You passed the full contents of an input, but they lack more of the existing keys than you allowed.

    ``max_absent=``, on the shell ``--max-absent``, protects against truncated contents. Nothing changed.

    Remedy: check whether the file is complete. If the file is complete, allow more absent keys.
    """


class EmptyContents(DdflowError, ValueError):
    """The full contents or the corrected history that you passed have no rows, so they would delete every existing key.

    The usual cause is a truncated file. ``allow_empty=True``, on the shell ``--allow-empty``, accepts empty contents.
    Nothing changed.

    Remedy: check whether the file is complete. If the file is complete, allow empty contents.
    """


class OutOfScope(DdflowError, ValueError):
    """You passed the full contents of a scope, but some of the rows are outside the scope.

    With ``scope="day = 7"``, the column ``day`` must be 7 in every row.

    Remedy: fix the table or the scope.
    """


class LogUnclear(DdflowError, ValueError):
    """A log did not feed this state, or ddflow cannot tell whether the log fed the state.

    ``verify``, ``migrate`` and ``why`` replay a log in the same way in which its parts were passed to the state. If
    some parts of the log were full contents, ddflow must know which parts.

    Remedy: pass all parts of the log, one part for each call, or mark the parts with ``dd.Full`` and ``dd.Restated``,
    on the shell with ``--full`` (docs/cli.md).
    """


class NotReadable(DdflowError, ValueError):
    """You tried to read rows that the state does not keep, or a time that is not retained or not yet closed.

    Without ``retain=`` a state keeps only the present. The rows of an input of differences are kept only with
    ``keep=True``.

    Remedy: ask for a time from ``since`` to the last closed time; set ``retain=``; or read another output.
    """


class NoSuchOutput(DdflowError, KeyError):
    """The result of a step or a run has no output of this name.

    The flow does not have this output. If an output has no changes, the result has a table without rows.

    Remedy: use a name that the message lists; ``flow.output(name, ...)`` defines an output.
    """

    __str__ = DdflowError.__str__  # a KeyError shows its arguments


class NotUnique(DdflowError, ValueError):
    """A key has several rows, but an upsert or a lookup needs exactly one row.

    ``to_upserts``, a sink in mode ``upsert`` and the right side of a ``lookup`` need one row per key.

    Remedy: use a key that distinguishes the rows; or choose with ``on_conflict=`` which row to show.
    """


class NotHeld(DdflowError, ValueError):
    """Updates retract a row that the collection does not hold.

    Some updates are missing, or they are out of order.

    Remedy: pass all updates from the beginning, in order. If older updates are missing, first pass the rows that
    existed before the first update.
    """


class NotSingle(DdflowError, ValueError):
    """A scalar subquery returned several rows for one outer row.

    ``(select x from t where ...)`` must return one value.

    Remedy: add a condition that leaves one row, or an aggregate such as ``max(x)``.
    """


class NegativeMultiplicity(DdflowError, ValueError):
    """After all updates of a time, a row has a negative multiplicity, but the operator needs a positive one.

    Top-k, outer joins, min and max need positive multiplicities. Counts and sums accept negative multiplicities.

    Remedy: find the ``negate`` or the ``updates`` input that retracts a row which was never asserted. Or apply the
    operator before you add that input.
    """


class CountOverflow(DdflowError, OverflowError):
    """A count, or a sum of diffs, overflows int64.

    The whole step was refused.

    Remedy: check whether ``diff`` names the right column, or use smaller groups.
    """


class AggregateOverflow(DdflowError, OverflowError):
    """After all updates of a time, an aggregate of a group is too large for its type.

    Results have the same types as in Spark: a sum of integers is int64.

    Remedy: cast the argument to a wider type: ``sum(cast(x as decimal(38,0)))``.
    """


class MergeOverflow(DdflowError, ValueError):
    """A merge adds up the values of a column, and a sum is too large for the type of the column.

    The sum has the declared type of its column.

    Remedy: declare a wider type for the column.
    """


class ListTooLong(DdflowError, ValueError):
    """A list that a merge collects exceeds its limit.

    ``union``, ``collect`` and ``append`` are bounded, so that one key cannot grow without end.

    Remedy: raise ``limit=``, or choose another merge strategy.
    """


class TooLarge(DdflowError, MemoryError):
    """A text column of one output would exceed 2 GiB.

    Arrow's ``string`` counts bytes in 32 bits.

    Remedy: take smaller steps, or declare the column ``large_string``.
    """


class EngineClosed(DdflowError, RuntimeError):
    """The engine was closed, a commit failed, a step was interrupted halfway, or the process was forked.

    The engine accepts no more calls, because its memory may differ from the last commit.

    Remedy: open the flow again; a durable state continues from its last commit. An earlier error shows the cause.
    """


class ConcurrentUse(DdflowError, RuntimeError):
    """A second thread called an engine.

    Only one thread at a time may use an engine.

    Remedy: use one engine for each thread, or use a lock. Any number of threads may read with `ddflow.Snapshot`.
    """


class BudgetExceeded(DdflowError, MemoryError):
    """A step would make the state exceed its ``memory=`` budget.

    Without a spill folder, the budget is a hard limit. The whole step was refused.

    Remedy: pass a folder with ``spill=``, raise the budget, or take smaller steps.
    """


class OutOfMemory(DdflowError, MemoryError):
    """An allocation of memory failed.

    Committed data is unchanged.

    Remedy: open the state again, with a ``memory=`` budget, or take smaller steps.
    """


class SpillRefused(DdflowError, OSError):
    """A spill folder is missing, belongs to another user, is open to all users, or is read-only.

    Spilled rows are data, so the folder must be closed to all other users.

    Remedy: pass another folder, or fix the permissions.
    """


class SpillInUse(DdflowError, OSError):
    """Another engine uses the spill folder.

    A spill folder belongs to a single engine.

    Remedy: use one folder for each engine.
    """


class SpillFull(DdflowError, OSError):
    """The disk has no space for the rows to spill.

    Nothing changed.

    Remedy: free some space, and repeat the call.
    """


class SpillFailed(DdflowError, OSError):
    """The disk failed to write or to read spilled rows.

    Nothing changed.

    Remedy: check the disk, and repeat the call.
    """


class StateRefused(DdflowError, OSError):
    """The location of a state is missing, belongs to another user, is open to all users, or allows no safe commits.

    ddflow refuses the location before it writes anything.

    Remedy: choose another location, or fix the permissions; ``trust="group"`` accepts a folder of a group.
    """


class CorruptState(DdflowError, RuntimeError):
    """A file of a state is missing, truncated or changed, or its contents are impossible.

    ddflow verifies every file before it parses a byte. The message names the file.

    Remedy: restore the file from a backup; or use ``ddflow rollback`` to go back to a version without this file.
    ``ddflow fsck`` lists all damage.
    """


class Fenced(DdflowError, RuntimeError):
    """Another writer has committed to this state since the engine opened it.

    If two writers commit, only one wins. This engine cannot write any more.

    Remedy: stop one writer. To continue after the other writer's commits, open the state again.
    """


class StorageFull(DdflowError, OSError):
    """The storage of a state has no space left.

    The commit did not happen.

    Remedy: free some space, open the state again, and repeat the call.
    """


class StorageFailed(DdflowError, OSError):
    """The storage of a state failed to write or to read.

    The commit did not happen.

    Remedy: check the disk or the bucket, open the state again, and repeat the call.
    """


class OutcomeUnknown(DdflowError, OSError):
    """The storage of a state failed while a commit was published, so the commit may have happened.

    This process cannot find out whether the commit happened.

    Remedy: open the state again, and repeat the call with its ``epoch=`` or ``time=``: a committed call counts
    once.
    """


class ReplayMismatch(DdflowError, ValueError):
    """The rows of a repeated call differ from the rows of the committed epoch.

    A repeated call must have the same rows, but a different split into batches is allowed.

    Remedy: pass the original rows, or pass the next epoch for new rows. On Spark, the source did not repeat its rows.
    """


class EpochSkipped(DdflowError, ValueError):
    """The epoch of a call is neither the next epoch nor an epoch that can be repeated.

    You can repeat the last eight epochs, on Spark the last ``keep=`` epochs.

    Remedy: pass the next number; ``ddflow inspect STATE`` shows the current epoch.
    """


class SnapshotExpired(DdflowError, LookupError):
    """The requested version of a state is no longer kept.

    A version is kept for ``grace=`` seconds after the next version was published.

    Remedy: ask for a later version; or, for slow readers, open the state with a greater ``grace=``.
    """


class UnreadableInput(DdflowError, ValueError):
    """A file, a table or a topic cannot be read: it is missing, empty, damaged, of an unknown type, or forbidden.

    A retry does not help. Nothing was ingested.

    Remedy: follow the advice in the message.
    """


class OutputExists(DdflowError, FileExistsError):
    """An output file already exists.

    ddflow overwrites a file only if you ask for it.

    Remedy: choose another name, or pass ``--overwrite``.
    """


class UnwritableOutput(DdflowError, OSError):
    """An output cannot be written because of its folder, its file type, its column types, or the disk.

    Existing contents are unchanged.

    Remedy: choose another path or file type, or check the disk.
    """


class SourceChanged(DdflowError, ValueError):
    """A source has changed since its position was committed.

    A file changed after ddflow read it; a topic no longer has the next offset; or a replication slot was dropped. The
    source no longer has the changes that follow the committed position.

    Remedy: restore the source; or create a new state from the present contents of the source.
    """


class SourceFailed(DdflowError, OSError):
    """A source cannot be reached, or does not answer.

    ``run`` retries with growing pauses, and raises this error after ``give_up_after=``. The state is intact.

    Remedy: check the server or the file, and run again.
    """


class SinkRefused(DdflowError, ValueError):
    """A state cannot write to a target: the shape or the rows of the table do not fit, or another state owns the table.

    Nothing was written.

    Remedy: choose another table, or change this one as the message says. ``ddflow sync --adopt`` takes over its rows.
    """


class SinkAhead(DdflowError, RuntimeError):
    """A target has an epoch that is not in this state's history, or a second process writes to it.

    The cause may be a rollback, or a state that was restored from an older backup.

    Remedy: stop the other writer; then run ``ddflow sync``, which writes the difference to the target.
    """


class SinkFailed(DdflowError, OSError):
    """A target cannot be reached, or failed to write an epoch.

    ``run`` retries with growing pauses, and raises this error after ``give_up_after=``. The state keeps the epoch.

    Remedy: check the target, and run again: the epoch is written once.
    """


class FeedChanged(DdflowError, ValueError):
    """A state receives batches from another query than before, or a query restarts its batch numbers.

    The checkpoint was deleted, or belongs to another state. If ddflow went on, it would count rows twice.

    Remedy: use one state for each query. Or pass ``adopt=True``, if the source begins after the last event in the
    state, or if the events have an order, so that older events change nothing.
    """


class MissingReceipts(DdflowError, RuntimeError):
    """Some tasks of an epoch did not report their work.

    Rows of the job's shuffle were filtered or lost.

    Remedy: run the job again, and do not change its shuffle.
    """


class ReceiptsDisagree(DdflowError, RuntimeError):
    """Two attempts at one task computed different results from the same rows.

    Your function, or the source, returns different rows each time.

    Remedy: make the results depend only on the rows: use no ``rand()``, no clock, no table that is being written.
    """


class Misrouted(DdflowError, RuntimeError):
    """A task received rows that belong to another task.

    A step between the stages changed the partitions.

    Remedy: do not change the job's shuffle, and run it again.
    """


# fmt: off
GROUPS: Final[dict[str, tuple[type[DdflowError], ...]]] = {
    "Plans and functions": (
        SpecError, ExpressionError, NoSuchVerb, WrongMode, PlanChanged, MissingExtra, NotInvariant,
        MergerFailed, AggregateFailed, IllegalTransition,
    ),
    "Rows and calls": (
        SchemaMismatch, NotArrow, BadMessage, NullKey, TieRefused, LateEvent, TimeWentBack, DuplicateKeys,
        TooManyAbsent, EmptyContents, OutOfScope, LogUnclear,
    ),
    "Results and reads": (
        NotReadable, NoSuchOutput, NotUnique, NotHeld, NotSingle, NegativeMultiplicity, CountOverflow,
        AggregateOverflow, MergeOverflow, ListTooLong, TooLarge,
    ),
    "Engines and memory": (
        EngineClosed, ConcurrentUse, BudgetExceeded, OutOfMemory, SpillRefused, SpillInUse, SpillFull,
        SpillFailed,
    ),
    "Durable state": (
        StateRefused, CorruptState, Fenced, StorageFull, StorageFailed, OutcomeUnknown, ReplayMismatch,
        EpochSkipped, SnapshotExpired,
    ),
    "Files, sources and sinks": (
        UnreadableInput, OutputExists, UnwritableOutput, SourceChanged, SourceFailed, SinkRefused, SinkAhead, SinkFailed
    ),
    "Jobs of many tasks": (
        FeedChanged, MissingReceipts, ReceiptsDisagree, Misrouted,
    ),
}
# fmt: on
"""The classes of errors, by subject."""
__all__ = ["DdflowError", *(each.__name__ for group in GROUPS.values() for each in group)]  # noqa: PLE0604
REMEDY: Final = "Remedy: "


class ErrorEntry(NamedTuple):
    """The entry of an error class in the index of errors: one sentence, the details, and the remedy."""

    name: str
    means: str
    more: str
    fix: str


def parse_error_entry(of: type[DdflowError]) -> ErrorEntry:
    """Parse the docstring of a class into its entry in the index of errors; each part becomes one line.

    >>> parse_error_entry(NullKey).means, parse_error_entry(NullKey).fix[:13]
    ('An event has no key: one of its key columns is null.', 'set the key i')
    """
    means, *more, fix = [" ".join(part.split()) for part in (inspect.getdoc(of) or "").split("\n\n")]
    return ErrorEntry(of.__name__, means, " ".join(more), fix.removeprefix(REMEDY))


@contextmanager
def convert_errors(errors: Any, to: Callable[[Any], DdflowError | None]) -> Iterator[None]:
    """Convert errors of the classes ``errors`` with ``to``. If ``to`` returns None, raise the original error."""
    try:
        yield
    except errors as error:
        if (ours := to(error)) is None:
            raise
        raise ours from None


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, or the name of the class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def import_extra(asked: str, extra: str, *names: str) -> Any:
    """Import modules of an extra, and return the first module. ``asked``: the request, for `MissingExtra`."""
    try:
        library, *_ = map(importlib.import_module, names)
    except ImportError as error:
        called = names[0].partition(".")[0].replace("_", "-")
        raise MissingExtra(asked, f"{called} is missing ({error})", f"pip install 'ddflow[{extra}]'") from None
    return library

"""Every exception that ddflow raises on purpose: one class a remedy, one message template, and its data.

An error says what was asked, what was found, and how to fix it. Numbers of rows and calls to type are data in these
texts (`base`). The fields ``input``, ``file``, ``row``, ``offset`` and ``column`` say where, if known. A class's
docstring is its entry in the index of errors.

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
    """A spec, a plan or an option contradicts itself, or the schema.

    It is raised when you build or open a flow, before a row is read; so no state has changed.

    What to do: change the spec; the message names the option and what fits.
    """


class ExpressionError(DdflowError, ValueError):
    """An expression does not parse, names a column that is not there, or has the wrong type.

    It is raised when the filter, projection or query is built. Functions and types are those of the dialect
    (docs/expressions.md, docs/sql.md).

    What to do: change the expression; the message shows the place.
    """


class NoSuchVerb(DdflowError, AttributeError):
    """A flow, a collection or a grouping has no method of that name.

    Other libraries have it, or it is misspelt. It is an `AttributeError`, as Python raises for such names.

    What to do: call what the message names.
    """


class WrongMode(DdflowError, RuntimeError):
    """``step`` was called on a flow in hold-back mode, or ``push`` in epoch mode.

    A flow whose upserts name ``time=`` holds events back; all others take steps.

    What to do: call what the message names, or take ``time=`` out of the spec.
    """


class PlanChanged(DdflowError, ValueError):
    """A state was made by another plan than the one that opens it.

    A state remembers its plan. Another key, order, type or formula would give its rows another meaning. New outputs,
    inputs and nullable columns are taken.

    What to do: open it with its plan; or add a changed query as a new output, and then drop the old one; or replay the
    log into a new state with ``ddflow migrate``; or, for wider types and outputs that you give up, ``ddflow evolve``.
    """


class MissingExtra(DdflowError, ImportError):
    """An optional dependency is not installed, or its version does not fit.

    Spark, Java, plotting, and the libraries of connectors are extras.

    What to do: run the line that the message has, such as ``pip install 'ddflow[kafka]'``.
    """


class NotInvariant(DdflowError, AssertionError):
    """A spec's answer depends on how its events are cut into calls, or on their arrival.

    ``dd.testing`` found it by trying. The message has the fewest events that show it.

    What to do: mend the merger or the aggregate; or, if you mean it so, say so where it is used.
    """


class MergerFailed(DdflowError, ValueError):
    """A merger or a transition of yours raised, or gave what it may not.

    The step was refused whole.

    What to do: mend the function; the message has the rows that it was given.
    """


class AggregateFailed(DdflowError, ValueError):
    """A function of a `ddflow.Aggregate` raised.

    The step was refused whole.

    What to do: mend the function, and try it with ``dd.testing.aggregate_laws``.
    """


class IllegalTransition(DdflowError, ValueError):
    """A machine has no transition for a state and a symbol, or a transition leads to a state that is none.

    The step was refused whole.

    What to do: add the transition, or give the machine a state for events that are illegal (docs/machines.md).
    """


class SchemaMismatch(DdflowError, ValueError):
    """A batch's columns or types are not those of the input, or a value has no equal one in the declared type.

    Columns are matched by name. Casts that lose nothing are made; text is never parsed.

    What to do: change the batch, or the declaration; the message has the column, the row, the value, and a type that
    holds it.
    """


class NotArrow(DdflowError, TypeError):
    """What was given as rows does not speak Arrow, and is no list of dicts or dict of lists.

    Tables, batches and readers of Arrow, pandas, Polars and DuckDB, datasets, and paths of files are taken.

    What to do: convert it to one of these.
    """


class BadMessage(DdflowError, ValueError):
    """A message cannot be read by the input's format.

    The message names its offset and the reason. The call was refused whole, so nothing before it is taken either.

    What to do: mend the source; or give the format ``on_bad="drop"``, which counts such messages as ``bad`` and puts
    them into the output ``<input>.bad``.
    """


class NullKey(DdflowError, ValueError):
    """An event has no key: one of its key columns is null.

    By default a null key is a mistake, and the call is refused whole.

    What to do: give the key; or choose ``null_key="drop"``, which counts the event as ``bad``, or ``"keep"``, where
    null is a value like any other.
    """


class TieRefused(DdflowError, ValueError):
    """Two events of a key have the same order, and the spec says ``tie="error"``.

    It may be two events of a call, or one of a call and what the key holds.

    What to do: make the order finer (``seq=``, more ``order_by`` columns), or choose ``tie="last"``, ``"first"`` or
    ``"greatest"``.
    """


class LateEvent(DdflowError, ValueError):
    """An event is behind the frontier, and the spec says ``late="error"``.

    Its time was closed before it came. The push was refused whole.

    What to do: choose ``late="drop"`` or ``"advance"``, or a greater ``lateness=``.
    """


class TimeWentBack(DdflowError, ValueError):
    """The time of a step, or a frontier, is not above the last one.

    Times of steps go up; a frontier stays or rises.

    What to do: give a greater time, or none: ``step(rows)`` takes the next one. To give a call again on durable state,
    use its ``epoch=``.
    """


class DuplicateKeys(DdflowError, ValueError):
    """Full contents name a key more than once.

    ``replace`` takes a table that is authoritative, so it has each key once.

    What to do: take the duplicates out; or give the rows to ``step``, where the order decides.
    """


class TooManyAbsent(DdflowError, ValueError):
    """Full contents lack more keys than was allowed.

    ``max_absent=``, on the shell ``--max-absent``, guards against contents that are cut off. Nothing changes.

    What to do: look whether the file is whole; if it is, allow more.
    """


class EmptyContents(DdflowError, ValueError):
    """Full contents, or a corrected history, have no rows, and there are keys, all of which they would delete.

    It is mostly a file that was cut off. ``allow_empty=True``, on the shell ``--allow-empty``, takes it. Nothing
    changes.

    What to do: look whether the file is whole; if it is, allow it.
    """


class OutOfScope(DdflowError, ValueError):
    """Full contents of a scope have rows outside of it.

    With ``scope="day = 7"`` each row must be of day 7.

    What to do: mend the table, or the scope.
    """


class LogUnclear(DdflowError, ValueError):
    """A log is not what a state was fed, or it cannot be said to be.

    ``verify``, ``migrate`` and ``why`` fold a log as the state was fed. Where some of it was full contents, they must
    know which part.

    What to do: give all parts, one for each call, or mark them with ``dd.Full`` and ``dd.Restated`` (on the shell,
    docs/cli.md).
    """


class NotReadable(DdflowError, ValueError):
    """A read asks for a time that is not kept or not yet closed, or for what is not kept at all.

    Only the present is kept, unless ``retain=`` says more. An input of differences is not kept without ``keep=True``.

    What to do: ask for a time from ``since`` to the last closed one; open the flow with ``retain=``; or read another
    output.
    """


class NoSuchOutput(DdflowError, KeyError):
    """What a step or a run gave back is asked for an output that the flow does not have.

    An output that changed nothing is there all the same, with no rows.

    What to do: take one of the names that the message lists; ``flow.output(name, ...)`` gives them.
    """

    __str__ = DdflowError.__str__  # a KeyError shows its arguments


class NotUnique(DdflowError, ValueError):
    """A key that becomes an upsert, or is looked up, holds several rows.

    ``to_upserts``, a sink in mode ``upsert`` and the right side of a ``lookup`` need one row a key.

    What to do: give a key that tells the rows apart; or say with ``on_conflict=`` which row shows.
    """


class NotHeld(DdflowError, ValueError):
    """Updates retract a row that is not there.

    So they are not all, or not in order.

    What to do: give all of them from the beginning, in order; where they begin later, first what the collection held
    then.
    """


class NotSingle(DdflowError, ValueError):
    """A scalar subquery has several rows for a row that asks for it.

    ``(select x from t where ...)`` stands for one value.

    What to do: add a condition that leaves one row, or an aggregate such as ``max(x)``.
    """


class NegativeMultiplicity(DdflowError, ValueError):
    """A row is there less than zero times at the end of a time, where that means nothing.

    Tops, joins of the outer kind, min and max need rows that are there. Counts and sums do not.

    What to do: look for a retraction that has no row (``negate``, an ``updates`` input); or put the operator in front
    of it.
    """


class CountOverflow(DdflowError, OverflowError):
    """A count, or a sum of diffs, does not fit int64.

    The step was refused whole.

    What to do: look whether ``diff`` is what you mean; group finer.
    """


class AggregateOverflow(DdflowError, OverflowError):
    """An aggregate of a group leaves its type at the end of a time.

    Types are Spark's: a sum of integers is int64.

    What to do: cast the argument to a wider type: ``sum(cast(x as decimal(38,0)))``.
    """


class MergeOverflow(DdflowError, ValueError):
    """A sum of a merge leaves its column's type.

    The column's declared type is that of the sum.

    What to do: declare the column wider.
    """


class ListTooLong(DdflowError, ValueError):
    """A list of a merge outgrows its limit.

    ``union``, ``collect`` and ``append`` are bounded, so that one key cannot grow without end.

    What to do: raise ``limit=``, or merge otherwise.
    """


class TooLarge(DdflowError, MemoryError):
    """A text column of one output would pass 2 GiB.

    Arrow's ``string`` counts bytes in 32 bits.

    What to do: take smaller steps, or declare the column ``large_string``.
    """


class EngineClosed(DdflowError, RuntimeError):
    """The engine was closed, a commit of it failed, a step was interrupted half way, or the process was forked.

    It takes no more calls, because what is in memory may not be what is committed.

    What to do: open the flow again; a durable state is that of its last commit. The cause is the error before it.
    """


class ConcurrentUse(DdflowError, RuntimeError):
    """A second thread entered an engine.

    One engine is used by one thread at a time.

    What to do: give every thread its own, or a lock around it. Any number of threads may read with `ddflow.Snapshot`.
    """


class BudgetExceeded(DdflowError, MemoryError):
    """A step would make the state outgrow its ``memory=`` budget.

    Without a folder to spill to, the budget is a limit. The step was refused whole.

    What to do: give ``spill=`` a folder, a larger budget, or smaller steps.
    """


class OutOfMemory(DdflowError, MemoryError):
    """Memory could not be had.

    What was committed is as it was.

    What to do: open the state again, with a ``memory=`` budget, or take smaller steps.
    """


class SpillRefused(DdflowError, OSError):
    """A spill folder is missing, belongs to another user, is open to everybody, or is read-only.

    Spilled rows are data, so the folder must be yours alone.

    What to do: give the engine another folder, or mend its rights.
    """


class SpillInUse(DdflowError, OSError):
    """Another engine holds the spill folder.

    A spill folder is of one engine.

    What to do: give every engine its own.
    """


class SpillFull(DdflowError, OSError):
    """The disk has no room for what would be spilled.

    Nothing was changed.

    What to do: free some room, and call again.
    """


class SpillFailed(DdflowError, OSError):
    """The disk failed to take what would be spilled, or to give it back.

    Nothing was changed.

    What to do: see to the disk, and call again.
    """


class StateRefused(DdflowError, OSError):
    """A state's place is missing, belongs to another user, is open to everybody, or cannot publish safely.

    It is refused before anything is written.

    What to do: give another place, or mend its rights; ``trust="group"`` takes a folder of a group.
    """


class CorruptState(DdflowError, RuntimeError):
    """A file of a state is missing, cut or changed, or says what cannot be.

    Every file is verified before a byte of it is parsed. The message names it.

    What to do: restore the file from a copy; or ``ddflow rollback`` to a version that does not need it; ``ddflow fsck``
    lists all damage.
    """


class Fenced(DdflowError, RuntimeError):
    """Another writer has committed to this state since it was opened.

    Of two writers one wins; this engine will never write again.

    What to do: stop one of the two. Open the state again to go on behind the other's commits.
    """


class StorageFull(DdflowError, OSError):
    """The place of a state has no room.

    The commit did not happen.

    What to do: free some room, open the state again, and give the call again.
    """


class StorageFailed(DdflowError, OSError):
    """The place of a state failed to take or to give something.

    The commit did not happen.

    What to do: see to the disk or the bucket, open the state again, and give the call again.
    """


class OutcomeUnknown(DdflowError, OSError):
    """The place of a state failed while a commit was published: it may have happened.

    Nobody can tell from here.

    What to do: open the state again, and give the call again with its ``epoch=`` or ``time=``: if it was committed, it
    counts once.
    """


class ReplayMismatch(DdflowError, ValueError):
    """An epoch that was committed is given again with other rows.

    A call that is given again must be the same, however it is cut into batches.

    What to do: give the rows that it had; or, if they are new, the next epoch. On Spark the source did not repeat its
    rows.
    """


class EpochSkipped(DdflowError, ValueError):
    """An epoch is given that is neither the next one nor one that can be given again.

    The last eight epochs can be given again, on Spark those of ``keep=``.

    What to do: give the next number; ``ddflow inspect STATE`` shows it.
    """


class SnapshotExpired(DdflowError, LookupError):
    """A version of a state is asked for that is not kept any more.

    Versions are kept for ``grace=`` seconds after the next one.

    What to do: ask for a later one; or open the state with a greater ``grace=`` for readers that take long.
    """


class UnreadableInput(DdflowError, ValueError):
    """A file, a table or a topic cannot be read: it is missing, empty, damaged, of an unknown kind, or you may not.

    Waiting does not help.

    What to do: do what the message says of it; nothing was taken in.
    """


class OutputExists(DdflowError, FileExistsError):
    """An output file is already there.

    Nothing is written over without being asked.

    What to do: give another name, or ask for it: ``--overwrite``.
    """


class UnwritableOutput(DdflowError, OSError):
    """An output cannot be written: its folder, its kind, its types, or the disk stand against it.

    What was there before is as it was.

    What to do: give another path or kind, or see to the disk.
    """


class SourceChanged(DdflowError, ValueError):
    """A source is not as it was when its position was committed.

    A file that was read changed; a topic no longer has the next offset; a slot was dropped. What came in between is
    lost here.

    What to do: restore it as it was; or begin a new state from what is there now.
    """


class SourceFailed(DdflowError, OSError):
    """A source cannot be reached, or does not answer.

    ``run`` tries again with growing pauses, and raises this after ``give_up_after=``. The state is whole.

    What to do: see to the server or the file, and run again.
    """


class SinkRefused(DdflowError, ValueError):
    """A target's table is not one that this state can write: by its shape, by its rows, or because it is another's.

    Nothing was written.

    What to do: give another table, or change it as the message says; to take over rows that are there, ``ddflow sync
    --adopt``.
    """


class SinkAhead(DdflowError, RuntimeError):
    """A target has an epoch that is not in this state's history, or a second process writes to it.

    It is so after a rollback, or after a state was restored from an older copy.

    What to do: stop the other writer; then ``ddflow sync`` gives the target the difference.
    """


class SinkFailed(DdflowError, OSError):
    """A target cannot be reached, or failed to take an epoch.

    ``run`` tries again with growing pauses, and raises this after ``give_up_after=``. The state keeps the epoch.

    What to do: see to the target, and run again: the epoch is written once.
    """


class FeedChanged(DdflowError, ValueError):
    """A state is given batches by another query than before, or batches that are numbered anew.

    The checkpoint was deleted, or belongs to another state. To go on would count rows twice.

    What to do: give the query a state of its own; or ``adopt=True``, if its source begins behind what the state has, or
    its events have an order, by which what came before changes nothing.
    """


class MissingReceipts(DdflowError, RuntimeError):
    """The tasks of an epoch did not all say what they did.

    Rows of the job's shuffle were filtered or lost on their way.

    What to do: run the job again, and leave its shuffle as it is.
    """


class ReceiptsDisagree(DdflowError, RuntimeError):
    """Two attempts at one task made different things of the same rows.

    A function of yours, or the source, gives other rows each time.

    What to do: make what differs a function of its rows: no ``rand()``, no clock, no table that is being written.
    """


class Misrouted(DdflowError, RuntimeError):
    """Rows came to a task that they are not for.

    Something between the stages changed the partitions.

    What to do: leave the job's shuffle as it is, and run it again.
    """


# fmt: off
GROUPS: Final[dict[str, tuple[type[DdflowError], ...]]] = {
    "Plans and functions": (
        SpecError, ExpressionError, NoSuchVerb, WrongMode, PlanChanged, MissingExtra, NotInvariant,
        MergerFailed, AggregateFailed, IllegalTransition,
    ),
    "What you give": (
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
"""The classes of errors, by what they are about."""
__all__ = ["DdflowError", *(each.__name__ for group in GROUPS.values() for each in group)]  # noqa: PLE0604
TO_DO: Final = "What to do: "


class ErrorEntry(NamedTuple):
    """A class of errors: in one sentence, in more, and what to do."""

    name: str
    means: str
    more: str
    fix: str


def parse_error_entry(of: type[DdflowError]) -> ErrorEntry:
    """Return the entry of a class in the index of errors, out of its docstring; each part is one line.

    >>> parse_error_entry(NullKey).means, parse_error_entry(NullKey).fix[:13]
    ('An event has no key: one of its key columns is null.', 'give the key;')
    """
    means, *more, fix = [" ".join(part.split()) for part in (inspect.getdoc(of) or "").split("\n\n")]
    return ErrorEntry(of.__name__, means, " ".join(more), fix.removeprefix(TO_DO))


@contextmanager
def convert_errors(errors: Any, to: Callable[[Any], DdflowError | None]) -> Iterator[None]:
    """Raise the error that ``to`` makes of one of ``errors``; where it makes None, the error itself."""
    try:
        yield
    except errors as error:
        if (ours := to(error)) is None:
            raise
        raise ours from None


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message; the name of its class if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def import_extra(asked: str, extra: str, *names: str) -> Any:
    """Import modules of an extra, and return the first one.  Raises `MissingExtra`.  ``asked``: for the message."""
    try:
        library, *_ = map(importlib.import_module, names)
    except ImportError as error:
        called = names[0].partition(".")[0].replace("_", "-")
        raise MissingExtra(asked, f"{called} is missing ({error})", f"pip install 'ddflow[{extra}]'") from None
    return library

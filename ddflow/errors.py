"""Every exception ddflow raises on purpose: one class a remedy, one message template.

Invariant: a message always says what was asked, what was found and what to do, in that order and with the values, so
that whoever reads it at night need not open this package. The three parts stay on the exception as fields, for
programs. A class is chosen by *what the reader has to do next*, not by where it was raised; two places that need the
same remedy raise the same class. Nothing here formats data frames, logs or exits.

>>> error = TimeWentBack("cannot advance to 4", "the frontier is already 7", "times may not go back")
>>> str(error)
'cannot advance to 4: the frontier is already 7; times may not go back'
>>> error.found
'the frontier is already 7'
"""


def cut(text: str, most: int = 300) -> str:
    """What messages repeat of a text that may be of any length: all of it, or its two ends."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


class DdflowError(Exception):
    """The base class of all errors of ddflow.  The message is ``asked: found; remedy``.

    Parameters
    ----------
    asked : str
        What was asked for.
    found : str
        What was found.
    remedy : str
        What to do about it.
    """

    def __init__(self, asked: str, found: str, remedy: str) -> None:
        super().__init__(asked, found, remedy)
        self.asked, self.found, self.remedy = asked, found, remedy

    def __str__(self) -> str:
        return f"{self.asked}: {self.found}; {self.remedy}"


class SpecError(DdflowError, ValueError):
    """A spec or a plan contradicts itself or its schema; change the spec."""


class SchemaMismatch(DdflowError, ValueError):
    """A batch's columns or types are not those the input declared; change the batch."""


class BadMessage(DdflowError, ValueError):
    """A message cannot be read by the input's format; mend its source, or drop such, the step was refused whole."""


class ExpressionError(DdflowError, ValueError):
    """An expression does not parse, names a missing column, or has the wrong type; change the expression."""


class NotArrow(DdflowError, TypeError):
    """An input does not speak Arrow; convert it."""


class NullKey(DdflowError, ValueError):
    """An event has no key, and the spec says that is an error; the step was refused whole."""


class TieRefused(DdflowError, ValueError):
    """Two events of a key have the same order under ``tie="error"``; the step was refused whole."""


class DuplicateKeys(DdflowError, ValueError):
    """Full contents name a key more than once; mend them, the call was refused whole."""


class TooManyAbsent(DdflowError, ValueError):
    """Full contents lack more keys than was allowed; look at them, nothing was written or committed."""


class OutOfScope(DdflowError, ValueError):
    """Full contents of a scope have rows outside of it; mend either, the call was refused whole."""


class LateEvent(DdflowError, ValueError):
    """An event is behind the frontier under ``late="error"``; the push was refused whole."""


class TimeWentBack(DdflowError, ValueError):
    """A step's time or a frontier is not above the last one."""


class WrongMode(DdflowError, RuntimeError):
    """``step`` was called in hold-back mode, or ``push`` in epoch mode."""


class NotSingle(DdflowError, ValueError):
    """A scalar subquery has several rows: add a condition or an aggregate, or delete a row."""


class NotReadable(DdflowError, ValueError):
    """A read asks for a time before ``since`` or not yet closed, or for a name that is no output."""


class LogUnclear(DdflowError, ValueError):
    """A log is not what a state was fed, or cannot be told to be; mark its parts, or give all of them."""


class CountOverflow(DdflowError, OverflowError):
    """A count does not fit int64; the step was refused whole."""


class NegativeMultiplicity(DdflowError, ValueError):
    """A row is there less than zero times where that means nothing; the step was refused whole."""


class AggregateOverflow(DdflowError, OverflowError):
    """An aggregate of a group leaves its type; cast its argument to a wider one, the step was refused whole."""


class CorruptState(DdflowError, RuntimeError):
    """State breaks its own invariant (two live values for one key); it must not be used."""


class EngineClosed(DdflowError, RuntimeError):
    """The engine was closed, or a step was interrupted half way; open a new one."""


class ConcurrentUse(DdflowError, RuntimeError):
    """A second thread entered an engine; give every thread its own."""


class UnreadableInput(DdflowError, ValueError):
    """An input file or folder is missing, empty, truncated or of an unknown kind."""


class OutputExists(DdflowError, FileExistsError):
    """An output file is already there and ``overwrite`` was not asked for."""


class UnwritableOutput(DdflowError, OSError):
    """An output cannot be written: its folder, its kind, its types, or the disk stand against it."""


class BudgetExceeded(DdflowError, MemoryError):
    """A step would make the state outgrow its budget; it was refused whole."""


class TooLarge(DdflowError, MemoryError):
    """A text column of one output would pass 2 GiB; take smaller steps, or declare large_string."""


class MissingExtra(DdflowError, ImportError):
    """An optional dependency (Spark, Java, plotting) is not installed, or its version does not fit."""


class SpillRefused(DdflowError, OSError):
    """A spill folder is missing, not this user's own, open to everybody or read-only; give the engine another."""


class SpillInUse(DdflowError, OSError):
    """Another engine holds the spill folder; give every engine its own."""


class SpillFull(DdflowError, OSError):
    """The disk has no room for what would be spilled; free some and call again, nothing was changed."""


class SpillFailed(DdflowError, OSError):
    """The disk failed to take what would be spilled, or to give it back; mend it and call again."""


class StorageFull(DdflowError, OSError):
    """The place of a state has no room: it did not happen; free some and open the state again."""


class StorageFailed(DdflowError, OSError):
    """The place of a state failed to take or to give something: it did not happen; mend it and open the state again."""


class OutcomeUnknown(DdflowError, OSError):
    """The place of a state failed while it published: it may have happened; open the state again and look."""


class StateRefused(DdflowError, OSError):
    """A state's place is missing, of another user, open to everybody, or cannot publish safely; give another."""


class Fenced(DdflowError, RuntimeError):
    """Another writer has committed to this state since it was opened; this engine will never write again."""


class PlanChanged(DdflowError, ValueError):
    """A state was made by another plan; open it with that one, or migrate it."""


class ReplayMismatch(DdflowError, ValueError):
    """An epoch that was committed is given again with other rows; give the same, or the next epoch."""


class EpochSkipped(DdflowError, ValueError):
    """An epoch is given that is neither the next nor one whose outputs are kept."""


class FeedChanged(DdflowError, ValueError):
    """A state is given batches by another query, or numbered anew; give the query a state of its own, or adopt it."""


class SourceChanged(DdflowError, ValueError):
    """A source is not as it was when its position was committed; restore it, or attach another."""


class SourceFailed(DdflowError, OSError):
    """A source cannot be reached, or does not answer; `run` tries again for a while."""


class SinkRefused(DdflowError, ValueError):
    """A target's table is not one that this state can write: its shape, its rows, or whose it is; see the message."""


class SinkAhead(DdflowError, RuntimeError):
    """A target has an epoch that is not in this state's history, as after a rollback; give it the difference."""


class SinkFailed(DdflowError, OSError):
    """A target cannot be reached, or failed to take an epoch; `run` tries again for a while."""


class MissingReceipts(DdflowError, RuntimeError):
    """An epoch's tasks did not all tell what they did; nothing was committed, run the job again."""


class ReceiptsDisagree(DdflowError, RuntimeError):
    """Two attempts at one task made different things of the same rows; make what differs a function of its rows."""


class SnapshotExpired(DdflowError, LookupError):
    """A version of a state is asked for that is not kept any more; ask for a later one."""


class OutOfMemory(DdflowError, MemoryError):
    """Memory could not be had; what was committed is as it was.  Give the engine a budget, or smaller steps."""


class NotUnique(DdflowError, ValueError):
    """A key that is turned into an upsert, or looked up, holds several rows; give another, or say which row shows."""


class NotHeld(DdflowError, ValueError):
    """Updates retract a row that is not there; give all of them, from the beginning and in order."""


class MergeOverflow(DdflowError, ValueError):
    """A sum of merging leaves its column's type; declare the column wider, the step was refused whole."""


class ListTooLong(DdflowError, ValueError):
    """A list of merging outgrows its limit; raise the limit, the step was refused whole."""


class NotInvariant(DdflowError, AssertionError):
    """A spec's answer depends on how its events are cut into calls, or arrive; mend the merger, or document it."""


class MergerFailed(DdflowError, ValueError):
    """A merger or a transition of one's own raised, or gave what it may not; mend it, the step was refused whole."""


class AggregateFailed(DdflowError, ValueError):
    """A function of a `ddflow.Aggregate` raised; mend it, the step was refused whole."""


class IllegalTransition(DdflowError, ValueError):
    """A machine has no transition for a state and a symbol, or to a state; mend either, the step was refused whole."""


class Misrouted(DdflowError, RuntimeError):
    """Rows came to a task that they are not for; leave the job's shuffle as it is and run it again."""

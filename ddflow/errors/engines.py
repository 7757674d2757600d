"""Errors of an engine: its memory, its threads, its spill folder.

Invariant: each docstring is an entry of the index of errors (`ddflow.errors.index`): what it means, when it comes, and
what to do.

>>> from ddflow.errors import BudgetExceeded
>>> issubclass(BudgetExceeded, MemoryError)
True
"""

from ddflow.errors.base import DdflowError


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

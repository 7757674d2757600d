"""Errors of a durable state: its place, its writers, its epochs, its versions.

Invariant: each docstring is an entry of the index of errors (`ddflow.errors.index`): what it means, when it comes, and
what to do.

>>> from ddflow.errors import Fenced
>>> issubclass(Fenced, RuntimeError)
True
"""

from ddflow.errors.base import DdflowError


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

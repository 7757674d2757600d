"""Errors of files, sources and sinks.

Invariant: each docstring is an entry of the index of errors (`ddflow.errors.index`): what it means, when it comes, and
what to do.

>>> from ddflow.errors import SinkFailed
>>> issubclass(SinkFailed, OSError)
True
"""

from ddflow.errors.base import DdflowError


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

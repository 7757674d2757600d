"""Errors of an epoch that many tasks make, as on Spark.  Nothing was committed.

Invariant: each docstring is an entry of the index of errors (`ddflow.errors.index`): what it means, when it comes, and
what to do.

>>> from ddflow.errors import FeedChanged
>>> issubclass(FeedChanged, ValueError)
True
"""

from ddflow.errors.base import DdflowError


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

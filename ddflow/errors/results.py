"""Errors of what a call would give, and of reads.  A step that raises one was refused whole.

Invariant: each docstring is an entry of the index of errors (`ddflow.errors.index`): what it means, when it comes, and
what to do.

>>> from ddflow.errors import NotUnique
>>> issubclass(NotUnique, ValueError)
True
"""

from ddflow.errors.base import DdflowError


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

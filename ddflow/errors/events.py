"""Errors of what is given to a call: rows, messages, times, logs.  The call was refused whole.

Invariant: each docstring is an entry of the index of errors (`ddflow.errors.index`): what it means, when it comes, and
what to do.

>>> from ddflow.errors import NullKey
>>> NullKey("3 rows", "1 without a key", "give one").remedy
'give one'
"""

from ddflow.errors.base import DdflowError


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

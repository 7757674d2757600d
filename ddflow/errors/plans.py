"""Errors of a plan: what you wrote contradicts itself, the schema, or the state.

Invariant: each docstring is an entry of the index of errors (`ddflow.errors.index`): what it means, when it comes, and
what to do.

>>> from ddflow.errors import SpecError
>>> print(SpecError("an upsert", "it has no key", "give key="))
an upsert: it has no key; give key=
"""

import importlib
from typing import Any

from ddflow.errors.base import DdflowError


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


def import_extra(asked: str, extra: str, *names: str) -> Any:
    """Import modules of an extra, and return the first one.  Raises `MissingExtra`.  ``asked``: for the message."""
    try:
        library, *_ = map(importlib.import_module, names)
    except ImportError as error:
        called = names[0].partition(".")[0].replace("_", "-")
        raise MissingExtra(asked, f"{called} is missing ({error})", f"pip install 'ddflow[{extra}]'") from None
    return library


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

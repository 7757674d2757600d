"""Evaluate expressions again on net rows, after they failed.

An expression may fail only for a row that is present at the end of a time. Updates of a step may hold rows that cancel
each other, such as pairs of a join. So an operator is first computed on the updates as they come; if an expression
fails, `compute_netted` adds up the diffs of equal rows and computes it again.

Guarantees: updates that fail nowhere are computed once and are not looked at.
Limits: equal rows that come in other pieces are not seen; `set_apart` finds the rows that must wait for these.

>>> import pyarrow.compute as pc
>>> from ddflow.operators.updates import few, ints
>>> updates = Updates(pa.table({"v": [0, 0, 2]}), few(0, 0, 0), ints(1, -1, 1), ints(3))
>>> def tenth(of):
...     return pc.divide_checked(10, of.rows.column("v")).to_pylist()
>>> compute_netted(lambda inputs: tenth(inputs[0]), [updates], Secret(1, 2))
[5]
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Secret, identities
from ddflow.errors import AggregateFailed, ExpressionError, NotSingle
from ddflow.operators.updates import Updates, consolidated

Made = TypeVar("Made")
FAILURES: Final = (ExpressionError, NotSingle, AggregateFailed, pa.ArrowException, ArithmeticError)
"""Errors of expressions; the last two are those of a user's function."""


def compute_netted(compute: Callable[[Sequence[Updates]], Made], inputs: Sequence[Updates], secret: Secret) -> Made:
    """Compute something of updates; of net updates if an expression fails.  Raises what fails then."""
    try:
        return compute(inputs)
    except FAILURES:
        pass
    return compute([consolidated(each, secret) for each in inputs])


def set_apart(
    compute: Callable[[Updates], Updates], updates: Updates, by: Sequence[str], secret: Secret
) -> tuple[Updates, Ints]:
    """Compute a linear operator of all rows that it succeeds for.  Return its output and the places of other rows.

    ``by``: the columns that decide whether it fails.  O(n), and O(log n) runs for each failing value of these.
    """
    high, low = identities(updates.rows.select(list(by)), secret, updates.diffs.size)
    _, first, number = np.unique(np.stack([high, low]), axis=1, return_index=True, return_inverse=True)
    one_each, fails = updates.picked(first), np.zeros(first.size, bool)
    ahead = [(0, first.size)]
    while ahead:
        begin, end = ahead.pop()
        try:
            compute(one_each.between(begin, end))
        except FAILURES:
            middle = (begin + end) // 2
            if end - begin < 2:
                fails[begin] = True
            else:
                ahead += [(begin, middle), (middle, end)]
    failing = fails[number.ravel()]
    return compute(updates.picked(np.flatnonzero(~failing))), np.flatnonzero(failing)

"""Room for text: what a function would make is weighed before it is made.

Invariant: no kernel is asked for more text than Arrow's offsets reach, and no plan makes constants of more than a
megabyte.  Arrow does not see to either: ``replace_substring`` and ``pa.repeat`` wrap their offsets around and
return an array that is corrupt, and ``binary_repeat`` ends the process.  Weighing costs O(1) where there is room.

>>> texts = pa.array(["a", "bc"])
>>> fits("repeat", [texts], lambda size: size * 10**9, lambda: pc.multiply(lengths(texts), 1e9))
Traceback (most recent call last):
    ...
ddflow.expressions.room.TooBig: repeat would make 3,000,000,000 bytes of 2 rows, up to 2,000,000,000 of one, and ...
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

CONSTANTS: Final = 1 << 20
"""Bytes that an expression's literals may be made into, while it is compiled."""
COLUMN: Final = 2**31 - 2
"""Bytes of text that Arrow's 32-bit offsets reach."""
_made: ContextVar[int] = ContextVar("made", default=0)


class TooBig(pa.ArrowInvalid):
    """Text that is too large.  ``row``: the one of ``rows`` that is too large by itself, if there is one."""

    row: int | None = None
    rows = 0


def fresh() -> None:
    """Start counting the constants of another expression."""
    _made.set(0)


def counted(value: pa.Scalar) -> pa.Scalar:
    """Count the text of a computed constant.  Raises TooBig for more than `CONSTANTS`."""
    _made.set(_made.get() + _bytes(value, 1))
    if _made.get() > CONSTANTS:
        raise TooBig(f"the constants in it take more than {CONSTANTS:,} bytes")
    return value


def lengths(value: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Return the bytes of each text, 0 for null, as doubles, because sizes computed from them may exceed an integer."""
    return pc.fill_null(pc.binary_length(value), 0).cast(pa.float64())


def fits(
    name: str, values: Sequence[Any], rough: Callable[[int], float], exact: Callable[[], Any] | None = None
) -> None:
    """Raise TooBig when function ``name`` would make more text of ``values`` than there is room for.

    ``rough``: of bytes in, how many come out at most.  ``exact``: bytes of each result, asked for only where the rough
    number is too large.  Some of Arrow's kernels wrap around there, and others end the process.  O(1), else O(rows).
    """
    rows = next((len(value) for value in values if not isinstance(value, pa.Scalar)), None)
    most = rough(sum(_bytes(value, 1 if rows is None else rows) for value in values))
    if most <= (CONSTANTS if rows is None else COLUMN):
        return
    if rows is None:
        size = most if exact is None else exact().as_py() or 0
        if size > CONSTANTS:
            raise TooBig(f"{name} would make a constant of {size:,.0f} bytes, and it may take {CONSTANTS:,}")
        return
    sizes = None if exact is None else exact()
    total = most if sizes is None else pc.sum(sizes).as_py() or 0
    if total > COLUMN:
        largest = most / rows if sizes is None else pc.max(sizes).as_py()
        made = f"{total:,.0f} bytes of {rows:,} rows, up to {largest:,.0f} of one"
        error = TooBig(f"{name} would make {made}, and a column of a batch holds {COLUMN:,}")
        error.rows = rows
        if sizes is not None and largest > COLUMN:
            error.row = pc.index(sizes, largest).as_py()
        raise error


def _bytes(value: Any, rows: int) -> int:
    """Estimate the bytes of text that ``rows`` rows of a value take, at most."""
    if not isinstance(value, pa.Scalar):
        return int(value.nbytes)
    if not value.is_valid or not isinstance(value, pa.StringScalar | pa.BinaryScalar):
        return 0
    return rows * len(value.as_buffer())

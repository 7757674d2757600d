"""A keyed frame: a frame and how its rows upsert, for those who make the input of a query themselves.

Invariant: it is a pair and no more; it does not look at the frame, of which ddflow need not know the library.

>>> from ddflow.plan.inputs.spec import Upsert
>>> table = keyed({"id": [1]}, Upsert(key="id"))
>>> table.rows, table.spec.key
({'id': [1]}, ('id',))
"""

from dataclasses import dataclass
from typing import Any

from ddflow.errors import SpecError
from ddflow.plan.inputs.spec import Upsert


@dataclass(frozen=True)
class KeyedFrame:
    """A frame whose rows are upserts.  `keyed` makes one.

    Attributes
    ----------
    rows : object
        The frame.
    spec : Upsert
        What identifies a row of it, which one wins, and what is a delete.
    """

    rows: Any
    spec: Upsert


def keyed(rows: Any, spec: Upsert) -> KeyedFrame:
    """Make a keyed table of a query from a frame whose rows are upserts; rows of a bare frame are appended.

    Parameters
    ----------
    rows : object
        The frame.
    spec : Upsert
        How its rows upsert.

    Returns
    -------
    KeyedFrame
        The two together.

    Raises
    ------
    SpecError
        If the spec is no `Upsert`.

    Examples
    --------
    On Spark, with a DataFrame ``df``::

        spark_bridge.sql("select count(*) n from orders", {"orders": dd.keyed(df, dd.Upsert(key="id"))})

    Notes
    -----
    O(1).
    """
    if not isinstance(spec, Upsert):
        raise SpecError("a keyed frame", f"its spec is {spec!r:.99}", "give dd.Upsert(key=...)")
    return KeyedFrame(rows, spec)

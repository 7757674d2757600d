"""Declare joins to the nearest row: ASOF joins.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> trades = flow.updates("trades", {"id": int, "at": int, "amount": int})
>>> prices = flow.updates("prices", {"id": int, "at": int, "price": int})
>>> trades.asof(prices, on="id", at="at >= at")
Asof(id int64, at int64, amount int64, price int64)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Literal

from ddflow.errors import ErrorText, Option, SpecError, shorten
from ddflow.plan.verbs.family import Made, VerbFamily, check_same_flow
from ddflow.plan.verbs.joins import parse_key_pairs, prepare_sides, select_columns

_QUOTED: Final = re.compile(r"^`((?:[^`]|``)*)`$")
_SIDE: Final = r"\s*((?:`(?:[^`]|``)*`|'[^']*'|[^`'<>])+?)\s*"
_COMPARED: Final = re.compile(f"{_SIDE}(>=|<=|>|<)(?!=){_SIDE}")


def join_nearest_rows(left: Any, right: Any, on: list[tuple[str, str]], at: tuple[str, str, str], how: str) -> Any:
    """Join each row to the nearest row; see `AsofVerbs.asof`.

    ``on``: the pairs of keys.  ``at``: the left moment, the comparison, and the right moment.
    """
    if how not in ("inner", "left"):
        raise SpecError("asof", ErrorText(Option("how"), f" is {how!r:.99}"), "use 'inner' or 'left'")
    check_same_flow("asof", left, right)
    one, way, other = at
    sides = prepare_sides(left, right, on, "asof", [(one, other)])
    (*keys, (mine, its)), direction = sides.on, "desc" if ">" in way else "asc"

    def arrange(side: Any, by: Sequence[str], moment: str, ties: bool) -> Any:
        quoted = "`" + moment.replace("`", "``") + "`"
        return side._apply_verb("arrange_in_order", by, f"{quoted} {direction} nulls last", ties)

    of = arrange(sides.left, [key for key, _ in keys], mine, False)
    partner = arrange(sides.right, [key for _, key in keys], its, True)
    columns = sides.list_columns()
    shown = None if 1 in sides.whole else {name: name for name, side, _ in columns if side == 1}
    made = of._apply_verb("asof", partner, keys, [mine, way, its], shown, sides.merged, how)
    return select_columns(made, [name for name, _, _ in columns])


def _parse_comparison(at: Any) -> tuple[str, str, str]:
    """Parse the comparison of two moments. Return both moments, and the comparison between them. Raises `SpecError`."""
    compared = _COMPARED.fullmatch(at) if isinstance(at, str) else None
    if compared is None:
        found, remedy = f" is {shorten(repr(at))}", "compare one column of each side with >=, >, <= or <"
        raise SpecError("asof", ErrorText(Option("at"), found), ErrorText(f"{remedy}: ", Option("at", "t >= t")))
    one, way, other = (_QUOTED.sub(lambda name: name[1].replace("``", "`"), each) for each in compared.groups())
    return one, way, other


class AsofVerbs(VerbFamily[Made], Generic[Made]):
    """Verbs that find the nearest row of another collection."""

    def asof(
        self,
        right: Made,
        on: str | Sequence[str] | Mapping[str, str],
        at: str,
        how: Literal["inner", "left"] = "inner",
    ) -> Made:
        """Extend each row with the nearest row of the same key in another collection, for example the last price.

        The result has the left columns, then the right columns. A key or a moment that has the same name on both sides
        gives one column. A row gets at most one partner, and keeps its multiplicity. If several right rows have the
        nearest moment, the first of them by their remaining columns, ascending, is the partner. A null key or a null
        moment has no partner. If a nearer row comes or goes, the result is corrected.

        Parameters
        ----------
        right : Collection
            The other side, of the same flow.
        on : str, sequence of str, or mapping of str to str
            The same as in `join`.  ``[]`` compares all rows with all rows, in one partition.
        at : str
            The moment of the left, then ``>=``, ``>``, ``<=`` or ``<``, then the moment of the right, as in
            ``"sold >= since"``.  A moment is a column with times or numbers, or an SQL expression.  ``>=`` and ``>``
            find the last moment before the left's, ``<=`` and ``<`` the first one after it.
        how : {"inner", "left"}
            "left" keeps the rows without a partner, padded with nulls; "inner" drops them.

        Returns
        -------
        Collection
            A collection with the columns of both sides.

        Raises
        ------
        SpecError, ExpressionError
            The same errors as in `join`.  `SpecError` also if the moments are not times or numbers that compare.

        Notes
        -----
        O(n log n) for n updates of a step, plus one index probe for each updated row, plus the left rows whose partner
        changes. The state stores the rows of both sides, arranged by key and moment. A step raises
        `NegativeMultiplicity` if a row of either side has a negative multiplicity.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> trades = flow.updates("trades", {"id": int, "sold": int})
        >>> prices = flow.updates("prices", {"id": int, "since": int, "price": int})
        >>> trades.asof(prices, on="id", at="sold >= since", how="left")
        Asof(id int64, sold int64, since int64, price int64)
        """
        made: Made = join_nearest_rows(self, right, parse_key_pairs(on, "asof"), _parse_comparison(at), how)
        return made

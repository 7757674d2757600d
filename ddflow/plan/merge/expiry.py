"""Declare how long an input remembers keys, in units of the order column. The wall clock is never used.

Invariant: an expiry has a time to live for keys, for tombstones, or for both. No time to live is negative. The horizon
is the greatest order at the previous commit, minus the time to live. So a rerun of the same calls expires the same
keys. After a key expires, ddflow can tell late events of the key from events of a new key only by the horizon. A
tombstone only has an effect if it is kept longer than the row of its key.

Sources: Pinot, "Upsert", metadataTTL and deletedKeysTTL; docs/semantics.md, section 10.

>>> Expiry(ttl=30).on_expire
'retract'
>>> Expiry.of_json(Expiry(ttl=30, tombstone_ttl=20).to_json()) == Expiry(ttl=30, tombstone_ttl=20)
True
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.schema import is_word_type
from ddflow.errors import SpecError

OnExpire = Literal["forget", "retract"]
OnForgotten = Literal["refuse", "insert"]


@dataclass(frozen=True, repr=False)
class Expiry:
    """How long an input remembers its keys.

    Parameters
    ----------
    ttl : int or float, optional
        The time to live of keys.  A key expires once its order is more than this below the greatest order seen.
    tombstone_ttl : int or float, optional
        The time to live of deleted keys only.
    on_expire : {"retract", "forget"}
        "retract" emits the retraction of an expired key's row.  "forget", as in Pinot, emits nothing: outputs and
        counts keep the row, and if the key returns, its new row is added to the old one.
    on_forgotten : {"refuse", "insert"}
        How to treat an event below the horizon whose key is not stored: refuse it (verdict ``forgotten``), or insert
        it.

    Raises
    ------
    SpecError
        If both times to live are missing, or one is not a number of 0 or more.  Also for an unknown rule, and for
        ``on_expire="forget"`` without ``ttl``.

    Notes
    -----
    Times to live are in the unit of the order column, for example microseconds for a timestamp. The wall clock is never
    used. A time to live of 0 keeps only the keys with the greatest order seen. The horizon is the greatest order at the
    previous commit, minus the time to live. (Pinot, "Upsert", ``metadataTTL`` and ``deletedKeysTTL``.)

    Examples
    --------
    Expire keys after a day of microseconds, and deleted keys after an hour:

    >>> Expiry(ttl=86_400_000_000, tombstone_ttl=3_600_000_000)
    dd.Expiry(ttl=86400000000, tombstone_ttl=3600000000)
    """

    ttl: int | float | None = None
    tombstone_ttl: int | float | None = None
    on_expire: OnExpire = "retract"
    on_forgotten: OnForgotten = "refuse"

    def __post_init__(self) -> None:
        if self.ttl is None and self.tombstone_ttl is None:
            raise SpecError("dd.Expiry", "it has neither ttl= nor tombstone_ttl=", "pass one of them, or omit expiry=")
        for name in ("ttl", "tombstone_ttl"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0):
                raise SpecError(
                    f"dd.Expiry({name}={given!r})",
                    "that is not a time to live",
                    "use a number, 0 or more, in the units of the order column",
                )
        for name, known in (("on_expire", get_args(OnExpire)), ("on_forgotten", get_args(OnForgotten))):
            if getattr(self, name) not in known:
                raise SpecError(
                    f"dd.Expiry({name}={getattr(self, name)!r})", "there is no such rule", f"use one of {list(known)}"
                )
        if self.on_expire == "forget" and self.ttl is None:
            raise SpecError(
                "dd.Expiry(on_expire='forget')", "without ttl= no row expires", "pass ttl=, or omit on_expire="
            )

    def __repr__(self) -> str:
        """Write the expiry as Python code."""
        return f"dd.Expiry({', '.join(f'{name}={value!r}' for name, value in self.to_json().items())})"

    @property
    def forgets(self) -> bool:
        """Whether rows expire without a retraction."""
        return self.ttl is not None and self.on_expire == "forget"

    def fits(self, field: pa.Field, asked: str) -> None:
        """Raise `SpecError` if the order column is neither a number nor a time.

        Raises `SpecError` if the type of the order column cannot hold a time to live.
        """
        kind = field.type
        if not is_word_type(kind) or pat.is_boolean(kind):
            raise SpecError(
                asked,
                f"the order column {field.name!r} is {kind}, which does not support subtraction",
                "order by a number or a time, or omit expiry=",
                column=field.name,
            )
        for name in ("ttl", "tombstone_ttl"):
            given = getattr(self, name)
            if given is None:
                continue
            if not pat.is_floating(kind) and not isinstance(given, int):
                raise SpecError(
                    f"{asked}, {name}={given!r}",
                    f"the order column {field.name!r} is {kind}",
                    "use a whole number of its units",
                    column=field.name,
                )
            if (isinstance(given, float) and not math.isfinite(given)) or (
                not pat.is_floating(kind) and given >= 2**kind.bit_width
            ):
                raise SpecError(
                    f"{asked}, {name}={given!r}",
                    f"two values of {kind} never differ that much, so nothing would ever expire",
                    f"use a smaller number, or omit {name}=",
                )

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `of_json` with the fields that differ from their default values."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {each.name: given[each.name] for each in fields(self) if given[each.name] != each.default}

    @classmethod
    def of_json(cls, given: Any) -> Self:
        """Read the dict that `to_json` returns. Raises `SpecError` if the dict is invalid."""
        try:
            return cls(**given)
        except TypeError as error:
            raise SpecError("an expiry from JSON", f"{given!r} ({error})", "pass the result of to_json()") from None

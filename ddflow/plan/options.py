"""What an engine is opened with: the options of `Flow.open`, checked.

Invariant: options that exist can be run with; each mistake is an error that names the option, and nothing was opened.
(The spill folder itself is claimed by the engine.)

>>> Options(retain=-1)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: retain=-1: that is no number of times; give a whole number, 0 or more
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Literal

from ddflow.columns.hashing import Secret
from ddflow.errors import SpecError
from ddflow.storage import address
from ddflow.storage.manifest_log import GRACE
from ddflow.storage.protocol import Store


@dataclass(frozen=True)
class Options:
    """See `Flow.open`.  Raises `SpecError`."""

    memory: str | int | None = None
    spill: str | PathLike[str] | None = None
    verdicts: Literal["counts", "rows"] = "counts"
    retain: int = 0
    threads: int = 1
    secret: Secret | None = None
    state: str | PathLike[str] | Store | None = None
    outputs: str | PathLike[str] | None = None
    autocommit: bool = True
    trust: Literal["owner", "group"] = "owner"
    grace: float = GRACE
    verify: Literal["open", "lazy"] = "open"

    def __post_init__(self) -> None:
        if self.verdicts not in ("counts", "rows"):
            raise SpecError(f"verdicts={self.verdicts!r}", "that is no choice", "use 'counts' or 'rows'")
        if self.verify not in ("open", "lazy"):
            raise SpecError(f"verify={self.verify!r}", "that is no choice", "use 'open' or 'lazy'")
        if self.trust not in ("owner", "group"):
            raise SpecError(f"trust={self.trust!r}", "that is no choice", "use 'owner' or 'group'")
        if self.state is None and (self.outputs is not None or not self.autocommit):
            given = "outputs=" if self.outputs is not None else "autocommit="
            raise SpecError(given, "it has no effect without a state", "give the folder of a state too")
        address.folder(self.outputs, "write outputs to")  # before anything is made
        for name, what, least in (("retain", "times", 0), ("threads", "threads", 1)):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise SpecError(
                    f"{name}={given!r}", f"that is no number of {what}", f"give a whole number, {least} or more"
                )

"""Inlet: a source beside an engine, read from its committed position, tried again when it fails.

Invariant: what is `taken` since the last epoch ends where an epoch may end; rows behind that wait in the inlet, and are
read again when the source fails in between. `committed` follows the epoch, and only then is the source told.

>>> inlet = Inlet("people", None, {}, None)
>>> inlet.moved
False
"""

from time import monotonic
from typing import Any, Final

from ddflow.connectors.attached import OpenSource, Polled
from ddflow.errors import SourceFailed

PAUSES: Final = (0.05, 30.0)
"""Seconds before the second attempt, and at most before a later one."""


class Inlet:
    """``of``: the source, attached as ``name``, for inputs with their ``schemas``, from a ``position`` on."""

    def __init__(self, name: str, of: Any, schemas: Any, position: Any) -> None:
        self.name, self.of, self.schemas = name, of, schemas
        self.position = self.committed = position
        self.taken, self._open = list[Polled](), list[Polled]()
        self.failing: SourceFailed | None = None
        self.since = self._again = self._pause = 0.0
        self.heard = monotonic()
        """When rows came last."""
        self._source: OpenSource | None = None

    @property
    def moved(self) -> bool:
        """Whether something was taken since the last commit."""
        return bool(self.taken)

    @property
    def within(self) -> bool:
        """Whether rows came behind which no epoch may end."""
        return bool(self._open)

    @property
    def ended(self) -> bool:
        """Whether nothing will come any more."""
        return self._source is not None and self.failing is None and self._source.ended

    def lag(self) -> str:
        """What is there and was not taken, for people."""
        return self.failing.found if self.failing is not None else "" if self._source is None else self._source.lag()

    def poll(self, room: int) -> Polled | None:
        """What came; None for nothing, also while the source fails.  Raises as `OpenSource.poll`."""
        now = monotonic()
        if self.failing is not None and now < self._again:
            return None
        try:
            if self._source is None:
                self._source = self.of.open(self.schemas, self.position)
            found = self._source.poll(room)
        except SourceFailed as error:
            self.since = now if self.failing is None else self.since
            self._pause = PAUSES[0] if self.failing is None else min(2 * self._pause, PAUSES[1])
            self.failing, self._again = error, now + self._pause
            self._open = []
            self.close()
            return None
        self.failing = None
        if found is not None:
            self.heard = now
            self._open.append(found)
            if found.position is not None:
                self.taken += self._open
                self._open, self.position = [], found.position
        return found

    def commit(self) -> None:
        """What was taken is committed."""
        self.taken, self.committed = [], self.position
        if self._source is not None:
            self._source.acknowledge(self.committed)

    def close(self) -> None:
        """Let go of the source."""
        if self._source is not None:
            self._source.close()
            self._source = None

"""Fed by: which source that is attached feeds an input, and how far it was read, as of a state.

Invariant: it is what the state's manifest says, and nobody is asked. A source is known to feed the input that it is
attached as, and those of which it gave rows with columns beside; a position is shown as the source's own people write
it, and without credentials, which no manifest has.

>>> print(FedBy("shop", "kafka", "kafka://b:1/shop", {"offsets": {"0": 17}}))
the source 'shop': kafka kafka://b:1/shop, read up to offset 17 of partition 0
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ddflow.connectors.formats.positions import POSITION
from ddflow.connectors.sources import placed, said
from ddflow.storage.epochs import Attached


class FedBy(NamedTuple):
    """``source``: as what it is attached.  ``kind``, ``target``, ``position``: as of `Attached`."""

    source: str
    kind: str
    target: str
    position: Any

    def __str__(self) -> str:
        return f"the source {self.source!r}: {self.kind} {self.target}, read up to {said(self.kind, self.position)}"

    def order(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """An order whose position is shown as the source's people write it."""
        place = row.get(POSITION)
        return dict(row) if place is None else {**row, POSITION: placed(self.kind, place)}

    def to_dict(self) -> dict[str, Any]:
        """In plain values."""
        return {**self._asdict(), "read_up_to": said(self.kind, self.position)}


def feeding(sources: Mapping[str, Attached], input: str) -> FedBy | None:
    """What feeds an input; None where nothing does, as far as the state knows.  O(sources)."""
    for name, of in sources.items():
        if name == input or input in of.left_out:
            return FedBy(name, of.kind, of.target, of.position)
    return None

"""Fed by: which source that is attached feeds an input, and how far it was read, as of a state; and whether one that is
given goes on from there.

Invariant: it is what the state's manifest says, and nobody is asked. A source is known to feed the input that it is
attached as, and those of which it gave rows with columns beside; a position is shown as the source's own people write
it, and without credentials, which no manifest has.

>>> print(FedBy("shop", "kafka", "kafka://b:1/shop", {"offsets": {"0": 17}, "cluster": "", "topic_id": ""}))
the source 'shop': kafka kafka://b:1/shop, read up to offset 17 of partition 0
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ddflow.connectors.attached import Source
from ddflow.connectors.formats.positions import POSITION
from ddflow.connectors.sources import placed, said
from ddflow.errors import Evolve, Phrase, SpecError
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
        """Replace the position in an order by the source system's notation for it."""
        place = row.get(POSITION)
        return dict(row) if place is None else {**row, POSITION: placed(self.kind, place)}

    def to_dict(self) -> dict[str, Any]:
        """In plain values."""
        return {**self._asdict(), "read_up_to": said(self.kind, self.position)}


def feeding(sources: Mapping[str, Attached], input: str) -> FedBy | None:
    """Find the source that feeds an input; None if the state knows of none. O(sources)."""
    for name, of in sources.items():
        if name == input or input in of.left_out:
            return FedBy(name, of.kind, of.target, of.position)
    return None


def taken_up(
    sources: Mapping[str, Attached], name: str, source: Source, inputs: Collection[str], where: str
) -> Attached | None:
    """Return the state's record of the source ``name``; None if it is new. O(sources + inputs).

    ``inputs``: of the plan. Raises `SpecError` for a source of another kind, and for one that feeds fewer inputs than
    before, because their changes would be lost. Raises it also for a source that the state reads under another name,
    and for an input that another source of its kind feeds, because deleted rows would stay.
    """
    before, asked = sources.get(name), f"the source {name!r}"
    for each in () if source.shared else source.inputs(name):
        by = feeding({at: of for at, of in sources.items() if at != name and of.kind == source.kind}, each)
        if by is not None and by.target != source.target:
            found = f"this state reads {each!r} as {by.source!r}, from {by.target}"
            raise SpecError(asked, found, f"leave it to {by.source!r}; or begin a new state")
    if before is None:
        for other, of in sources.items():
            if not source.shared and (of.kind, of.target) == (source.kind, source.target):
                found = f"this state reads {of.target} as {other!r}, up to {said(of.kind, of.position)}"
                raise SpecError(asked, found, f"give it under that name, {other!r}, whatever inputs it feeds")
        return None
    if before.kind != source.kind:
        found = f"its position is one of {before.kind}, and this is {source.kind}"
        raise SpecError(asked, found, "attach the one that it was, or a new state")
    if gone := [each for each in before.left_out if each in inputs and each not in source.inputs(name)]:
        found = f"it feeds {' and '.join(map(repr, gone))} in this state, of which changes would be passed over"
        drop = Evolve(state=where, drop_inputs=gone)
        raise SpecError(
            asked, found, Phrase("give it with all that it feeds; what nobody needs any more goes by ", drop)
        )
    return before

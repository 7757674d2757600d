"""All sinks of a state that are attached: pumped together, bounded together, synced and detached.

Invariant: no epoch is lost to a sink: while more waits for one than it may, nothing new is to be taken in, and a sink
that has failed for longer than it may ends whatever runs, with a whole state. What each of them has is said by the next
manifest, or by one of its own at the end.

>>> import ddflow as dd, tempfile
>>> from ddflow.engine.run.kept_epochs import EngineEpochs
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> with tempfile.TemporaryDirectory() as place, flow.open(f"{place}/state") as engine:
...     sink = dd.sinks.sqlite(f"{place}/out.db", "people")
...     deliveries = Deliveries({"people": Delivery(EngineEpochs(engine.calls, "an example"), "people", sink)})
...     _ = engine.step({"people": {"id": [7]}})
...     deliveries.full(), deliveries.pump(), deliveries.at
(False, True, {'people': 1})
"""

import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, closing
from time import monotonic, sleep
from typing import Any, Final

from ddflow.columns.names import did_you_mean
from ddflow.connectors.api import TableChanges, TableSink
from ddflow.engine.run.delivery import Delivery
from ddflow.engine.run.kept_epochs import KeptEpochs, Synced
from ddflow.engine.run.options import EPOCHS
from ddflow.errors import DdflowError, SpecError
from ddflow.errors.base import replace_texts
from ddflow.metrics import Look, SinkLag

NAP: Final = 0.01
"""Seconds between two looks for something to do."""


class Deliveries:
    """The deliveries of all sinks.

    ``each``: by output. ``most``: the most bytes of updates that may wait for one. ``patience``: seconds of retries for
    a failing one, None for ever.
    """

    def __init__(self, each: Mapping[str, Delivery], most: int = 1 << 30, patience: float | None = None) -> None:
        self.each, self.most, self.patience = each, most, patience

    @property
    def at(self) -> dict[str, int]:
        """By output, the last epoch that needs nothing more."""
        return {name: each.at for name, each in self.each.items()}

    @property
    def waiting(self) -> bool:
        """Whether an epoch waits for a sink."""
        return any(each.waiting for each in self.each.values())

    def lags(self) -> dict[str, SinkLag]:
        """By output, what its sink has yet to take.  O(epochs since the last call)."""
        return {
            name: SinkLag(each.waiting, each.waiting_bytes(), each.retry.failing is not None)
            for name, each in self.each.items()
        }

    def pump(self) -> bool:
        """Give each what it lacks; whether none lacks anything.  O(updates).  Raises `SinkAhead`, `SinkRefused`."""
        return not [each for each in self.each.values() if not each.pump(monotonic())]

    def full(self) -> bool:
        """Whether too much waits for one.  O(epochs since the last call)."""
        most = self.most
        return any(e.waiting >= EPOCHS or (e.waiting and e.waiting_bytes() >= most) for e in self.each.values())

    def give_up(self) -> None:
        """Raise what has failed for too long."""
        for each in self.each.values():
            each.retry.give_up(monotonic(), self.patience)

    def cancel(self) -> None:
        """Let running writes fail, if their targets support that; their epochs wait. Call it from another thread."""
        for each in self.each.values():
            each.retry.cancel()

    def reshaped(self) -> None:
        """Continue with the new columns of outputs, after the commit that has them."""
        for each in self.each.values():
            each.reshaped()

    def make_room(self) -> None:
        """Pump while too much waits.  Raises as `pump` does, and what has failed for too long."""
        while self.full():
            self._again()

    def drain(self) -> None:
        """Pump until nothing waits any more.  Raises as `make_room`."""
        while not self.pump():
            self._again()

    def _again(self) -> None:
        self.pump()
        self.give_up()
        sleep(NAP)

    def close(self) -> None:
        """Let go of all targets.  Twice is harmless."""
        for each in self.each.values():
            each.close()


def passed_over(attached: Iterable[str], given: Collection[str], where: str) -> None:
    """Warn of sinks of a state that are ``attached`` and not ``given``.  O(sinks)."""
    if lacking := [name for name in attached if name not in given]:
        warnings.warn(
            f"the sinks of {lacking} of {where} are attached and not given: the state keeps their updates until they "
            "are given again, or forgotten: engine.detach(NAME), ddflow sync --detach NAME, on Spark "
            "spark_bridge.sync(flow, state, {}, detach=(NAME,))",
            stacklevel=4,
        )


def sync(
    epochs: KeptEpochs, sinks: Mapping[str, TableSink], adopt: bool, dry: bool, look: Look = lambda rows: None
) -> dict[str, Synced]:
    """Write the difference to the targets, after a check of all of them. Like `Engine.sync`."""
    with ExitStack() as stack:
        each = {name: stack.enter_context(closing(Delivery(epochs, name, sink, look))) for name, sink in sinks.items()}
        for delivery in each.values():
            delivery.claim(adopt)
        for delivery in each.values():
            if not (dry and delivery.table.missing()):
                delivery.prepare(dry=dry)
        found = {name: delivery.difference() for name, delivery in each.items()}
        if not dry:
            _give({name: (delivery, found[name][0]) for name, delivery in each.items()})
            epochs.acknowledge()
    return {name: difference for name, (_, difference) in found.items()}


def _give(each: Mapping[str, tuple[Delivery, TableChanges]]) -> None:
    """Write differences.  An error says which were written before it."""
    given = list[str]()
    for name, (delivery, made) in each.items():
        try:
            delivery.give(made)
        except DdflowError as error:
            if given:
                replace_texts(error, found=error.found + f" (changed before that: {', '.join(map(repr, given))})")
            raise
        given.append(name)


def detach(epochs: KeptEpochs, names: tuple[str, ...]) -> None:
    """Forget sinks and sources. Like `Engine.detach`."""
    kinds: dict[str, dict[str, Any]] = {"sink": epochs.log.sinks, "source": epochs.log.sources}
    known = {f"{kind}:{name}": (of, name) for kind, of in kinds.items() for name in of}
    chosen = list[tuple[dict[str, Any], str]]()
    for asked in names:
        ways = [asked] if asked in known else [way for way, (_, name) in known.items() if name == asked]
        if not ways:
            remedy = did_you_mean(asked, [name for _, name in known.values()])
            raise SpecError(f"detach {asked!r}", "it is not attached", remedy)
        if len(ways) > 1:
            remedy = f"say which one: {' or '.join(map(repr, ways))}"
            raise SpecError(f"detach {asked!r}", "a sink and a source have this name", remedy)
        chosen.append(known[ways[0]])
    for of, name in chosen:
        of.pop(name, None)
    epochs.acknowledge()

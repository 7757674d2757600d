"""A machine's dpkg log as a feed: package -> (status, version), judged by dpkg's own action lines and by dpkg-query.

Invariant: a retraction is judged by a line that is no event of the plan: before dpkg upgrades, removes or purges a
package it writes which version the package has, and that must be the version that the package's next update retracts.
A second can hold a package's whole life, and the plan nets it to one change; so only actions on packages last heard of
in an earlier second are judged. The final collection is judged for the packages the log speaks of; what was installed
before the log began (with the machine's image) is counted and said. The times are the log's local time, kept as
timestamps without a zone.

>>> str(EVENTS.field("at").type), EVENTS.names[-1]
('timestamp[s]', 'seq')
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

import ddflow as dd
from ddflow.demo import dpkg
from ddflow.demo.feed import Slice
from ddflow.demo.tally import Checks, compare, equal
from ddflow.errors import UnreadableInput

SLICE: Final = 65_536
"""Events after which a slice ends with the next second."""
ACTIONS: Final = "retractions: the version that dpkg's upgrade and remove lines name"
EVENTS: Final = pa.schema([*dpkg.PACKAGES, ("gone", pa.bool_()), ("at", pa.timestamp("s")), ("seq", pa.int64())])


class DpkgFeed:
    """The dpkg logs of the system at ``root``."""

    name, source, key, group = "dpkg", "packages", "package", "status"
    time = "the log's own clock"

    def __init__(self, root: Path = Path("/")) -> None:
        """Find the logs; see `dpkg.logs` for what it raises."""
        self.root, self.reader = root, dpkg.Reader()
        self.paths = dpkg.logs(root)
        self.events = self.known = self.unheard = 0
        self.mentioned: set[str] = set()
        self._open: dict[str, list[dpkg.Replaced]] = defaultdict(list)
        names = ", ".join(path.name for path in self.paths)
        self.title = f"dpkg log of {root}: {names}"

    def plan(self) -> dd.Flow:
        """Upserts by package in log order, at the log's clock; the diffs, packages by status, those installed."""
        flow = dd.Flow()
        spec = dd.Upsert(key="package", time="at", seq="seq", delete=dd.tombstone("gone"))
        packages = flow.upserts("packages", EVENTS, spec)
        flow.output("packages", packages)
        flow.output("by_status", packages.project(["status"]).count())
        flow.output("installed", packages.filter("status = 'installed'"))
        return flow

    def slices(self) -> Iterator[Slice]:
        """Slices of whole seconds; raises `UnreadableInput` for what cannot be read or holds no event."""
        waiting: list[dpkg.Event] = []
        for event in self.reader.events(dpkg.lines(self.paths)):
            if len(waiting) >= SLICE and event.at > waiting[-1].at:
                yield self._slice(waiting)
                waiting = []
            waiting.append(event)
        if not waiting:
            found = f"no package changes in its {self.reader.lines:,} lines"
            raise UnreadableInput(self.title, found, "wait until dpkg has done something")
        yield self._slice(waiting)

    def judge(self, part: Slice, out: Mapping[str, pa.Table], checks: Checks) -> None:
        """The version of each package's retraction against the action line before it: one check an action."""
        updates: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        packages = out["packages"]
        columns = (packages["package"], packages["version"], packages["_time"].cast(pa.int64()), packages["_diff"])
        for name, version, at, diff in zip(*(column.to_pylist() for column in columns), strict=True):
            updates[name][at] += [version] if diff < 0 else []
        for name in updates.keys() & self._open.keys():
            self._open[name] = [each for each in self._open[name] if not _judged(each, updates[name], checks)]

    def conclude(self, final: Mapping[str, pa.Table], verdicts: Mapping[str, int], checks: Checks) -> None:
        """The final collections against dpkg-query, for the packages the log speaks of; a verdict for every event."""
        held = dict(
            zip(final["packages"]["package"].to_pylist(), final["packages"]["version"].to_pylist(), strict=True)
        )
        for name, waiting in self._open.items():
            for replaced in waiting:
                checks.add(ACTIONS, equal(f"{name} still to have version", replaced.version, held.get(name)))
        known = dpkg.installed(self.root)
        told = known.filter(pc.is_in(known["package"], pa.array(sorted(self.mentioned), pa.string())))
        self.known, self.unheard = known.num_rows, known.num_rows - told.num_rows
        checks.add("final packages: dpkg-query", compare(_once(told), final["packages"]))
        counts = told.group_by("status").aggregate([("package", "count")]).rename_columns(["status", "count"])
        checks.add("final counts by status: dpkg-query", compare(_once(counts), final["by_status"]))
        ready = told.filter(pc.equal(told["status"], "installed"))
        checks.add("final installed: dpkg-query", compare(_once(ready), final["installed"]))
        checks.add("verdicts: one for each event", equal("verdicts", self.events, sum(verdicts.values())))

    def extras(self) -> Mapping[str, pa.Table]:
        """Nothing: the times are the log's own."""
        return {}

    def notes(self) -> list[str]:
        """What could not be judged or was passed over, in numbers."""
        early = f"{self.unheard:,} of the {self.known:,} packages that dpkg-query lists are not in the log:"
        said = [f"{early} they came before it begins, with the machine's image, and are not judged"]
        if self.reader.set_back:
            said.append(f"{self.reader.set_back:,} lines are stamped before a line above them and take its time")
        if self.reader.other:
            said.append(f"{self.reader.other:,} lines are not of dpkg's form and were passed over")
        return said

    def _slice(self, events: list[dpkg.Event]) -> Slice:
        self.events += len(events)
        self.mentioned.update(event.package for event in events)
        for replaced in self.reader.replaced:
            self._open[replaced.package].append(replaced)
        self.reader.replaced = []
        columns = zip(*events, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, EVENTS, strict=True)]
        return Slice(pa.RecordBatch.from_arrays(arrays, schema=EVENTS), events[-1].at + 1, {})


def _judged(replaced: dpkg.Replaced, updates: Mapping[int, list[str]], checks: Checks) -> bool:
    """Judge a line by its package's first updates at its time or later; False where there are none yet."""
    at = min((time for time in updates if time >= replaced.at), default=None)
    if at is None:
        return False
    checks.add(ACTIONS, equal(f"{replaced.package} to retract version", [replaced.version], updates[at]))
    return True


def _once(table: pa.Table) -> pa.Table:
    """A collection in which every row is there once."""
    return table.append_column("_diff", pa.repeat(pa.scalar(1, pa.int64()), table.num_rows))

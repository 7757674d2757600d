"""What a run of an epoch gives back: its outputs as frames of committed files, and its figures.

Invariant: a frame reads files of the epoch and computes nothing again, as long as the state keeps them, or where they
lie in a folder, for ever.

>>> Ran.__iter__.__name__, OutputFiles._fields
('__iter__', ('session', 'store', 'trust', 'folder', 'past'))
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from ddflow.dataflow.result import no_output
from ddflow.dataflow.verdicts import Verdicts
from ddflow.partitions.receipt import Committed
from ddflow.plan.past import PastSchemas
from spark_bridge.job import Job
from spark_bridge.tasks import ReadFiles
from spark_bridge.types import Shape

_NAMES = "name string, length bigint, digest binary"


class OutputFiles(NamedTuple):
    """The places of committed files, and the session that reads them.

    ``folder``: of Parquet outputs, else None. ``past``: their columns at the time of writing, if the plan has others
    now.
    """

    session: Any
    store: str
    trust: str
    folder: str | None
    past: PastSchemas | None


class Ran(Mapping[str, DataFrame]):
    """The outputs of an epoch: a mapping of each name to a DataFrame of its committed files.

    ``epoch``, ``time``: its number, and the ``_time`` of its updates.  ``frontier``: the least time still open.
    ``replayed``: whether it had been committed before.  ``verdicts``: of its events.  ``rows``: that came, by input.
    ``figures``: microseconds and bytes, over all tasks, and of the driver.  ``sinks``: by output, the last epoch that
    its sink has.
    """

    def __init__(
        self, shapes: Mapping[str, Shape], done: Committed, files: OutputFiles, sinks: Mapping[str, int]
    ) -> None:
        self._shapes, self._done, self._files = shapes, done, files
        self.epoch, self.time, self.frontier, self.replayed = done.epoch, done.time, done.frontier, done.replayed
        self.verdicts = Verdicts.of(done.counts, done.figures.get("pending", 0))
        self.rows, self.figures = done.rows, done.figures
        self.sinks = sinks

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._shapes:
            return no_output(name, self._shapes)
        shape, place = self._shapes[name], self._files
        output = self._done.outputs.get(name)
        files = [(blob.name, blob.length, blob.digest) for blob in output.blobs] if output is not None else []
        there = None if place.past is None else place.past.outputs[name]
        task = ReadFiles(place.store, place.trust, place.folder, name, self.epoch, shape.arrow, there)
        named: DataFrame = place.session.createDataFrame(files, _NAMES)
        return named.mapInArrow(task, shape.spark)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __repr__(self) -> str:
        sizes = (f"{name}: {self.updates(name):,} updates" for name in self)
        return f"Ran(epoch {self.epoch}; {', '.join(sizes)}; {self.verdicts})"

    def updates(self, name: str) -> int:
        """How many updates an output gained, an int, without reading them.  O(1)."""
        output = self._done.outputs.get(name)
        return 0 if output is None else output.rows


def ran(job: Job, session: Any, committed: Committed, sinks: Mapping[str, int]) -> Ran:
    """Collect the outputs and the verdicts of an epoch. ``sinks``: by output, the last epoch that each has."""
    folder = job.coordinator.manifest.folder
    past = job.coordinator.log.past(committed.epoch)
    return Ran(job.shapes, committed, OutputFiles(session, job.store, job.options.trust, folder, past), sinks)

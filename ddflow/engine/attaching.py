"""What an engine does with sources and sinks: `run`, `stop`, `sync` and `detach`.  See ``run`` and ``deliveries``.

Invariant: nothing of them is in the plan; a state's manifest says what is attached, and where each is.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> with flow.open() as engine:
...     engine.run({"peple": dd.sources.files("people/*.csv")})
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: the source 'peple': there is no input 'peple'; ...
"""

from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ddflow.connectors.attached import Source, TableSink
from ddflow.dataflow.result import Step
from ddflow.engine.calls import Calls
from ddflow.engine.deliveries import detach, sync
from ddflow.engine.differing import Synced
from ddflow.engine.kept_epochs import EngineEpochs
from ddflow.engine.run import RunLoop
from ddflow.engine.run_done import RunDone
from ddflow.engine.run_options import RunOptions
from ddflow.metrics import Look


class Attaching(ABC):
    """``calls``: of the engine."""

    calls: Calls

    def run(
        self,
        sources: Mapping[str, Source] | None = None,
        sinks: Mapping[str, TableSink] | None = None,
        *,
        interval: str = "1s",
        rows: int | None = None,
        until: Any = None,
        lateness: Any = None,
        idle: str | None = None,
        sink_backlog: str | int = "1GB",
        give_up_after: str | None = "10min",
        room: str | int = "64MB",
        evolve: Literal["add", "stop"] = "add",
        max_absent: int | str | None = None,
        on_epoch: Callable[[Step], object] | None = None,
    ) -> RunDone:
        """Follow sources, commit what comes with their positions, and give each epoch to the sinks.

        Parameters
        ----------
        sources : mapping of str to Source
            By input, such as ``dd.sources.files("landing/*.csv", follow=True)``.
        sinks : mapping of str to TableSink
            By output, such as ``dd.sinks.duckdb("shop.duckdb", "by_city")``.  They need a durable state.
        interval : str
            How long rows are gathered for an epoch.
        rows, room : int, and str or int
            An epoch ends earlier after so many rows, or about so many bytes.
        until : str or datetime, optional
            A span, or a time, to end at. By default when all sources end, or after an epoch at `stop` or a signal.
        lateness : int or str, optional
            Hold-back mode: how late events may come after the greatest time seen, unless an input's spec sets it.
        idle : str, optional
            Hold-back mode: a source that is silent for so long does not hold the frontier.
        sink_backlog : str or int
            Bytes of updates that may wait for a sink (or 10,000 epochs); then no more input is taken.
        give_up_after : str, optional
            How long ddflow retries a source or a sink that fails; None: for ever.
        evolve : {"add", "stop"}
            Add a new column of a source after an epoch, or end the run.
        max_absent : int or str, optional
            The most keys that full contents of a source may delete, 100 or ``"50%"``, as of `replace`.
        on_epoch : callable, optional
            Called with the `Step` of each epoch, on this thread, after its commit. An error in it ends the run.

        Returns
        -------
        RunDone
            Its counts, and the reason for its end.

        Raises
        ------
        SpecError
            For an unknown name, an invalid option, an output without the key that a mode needs.
        SinkRefused, SinkAhead
            For a target that this state cannot write, or that has an epoch of another history.
        SourceFailed, SinkFailed
            For a failure that lasted ``give_up_after``; the state is complete.
        SourceChanged, SchemaMismatch, DdflowError
            For a source that has changed; for a column that is new or wider; the errors of `step` and `evolve`.

        Notes
        -----
        A state keeps updates for a sink until you `detach` it. You may open it without the columns that a run added.
        """
        waits = lateness, idle, sink_backlog, give_up_after
        options = RunOptions(interval, rows, until, *waits, room, evolve, max_absent)
        engine: Any = self
        return RunLoop(engine, sources or {}, sinks or {}, options, shows=True, on_epoch=on_epoch).run()

    def stop(self) -> None:
        """End the run in hand behind its epoch, which it commits; without one, the next run returns at once.

        Any thread may, and a signal's handler: it does not wait.  `close` waits.
        """
        self.calls.stopping = True
        self.calls.end_run()

    def sync(
        self,
        sinks: Mapping[str, TableSink],
        *,
        adopt: bool = False,
        dry: bool = False,
        look: Look = lambda rows: None,
    ) -> dict[str, Synced]:
        """Write the difference between the outputs and their targets to the targets, as of the last epoch.

        Parameters
        ----------
        sinks : mapping of str to TableSink
            By output.
        adopt : bool
            Whether to take over a table without a record, or with the record of another state.
        dry : bool
            Only report the difference.
        look : callable
            For progress, called with the number of rows read of outputs and tables, and written, since its last call.

        Returns
        -------
        dict of str to Synced
            By output, how many rows of the table were deleted, changed and added.

        Raises
        ------
        SinkRefused
            For a table of another state, without ``adopt``, or of another shape; no row of any target is changed.
        SinkFailed, SpecError
            As `run`; the error lists the targets that were changed before one failed.

        Notes
        -----
        O(rows of the outputs and the tables).  It holds all rows that differ.
        """
        self.calls.settled("sync")
        return sync(EngineEpochs(self.calls, "sync"), sinks, adopt, dry, look)

    def detach(self, *names: str) -> None:
        """Forget sinks, whose updates the state keeps, and sources with their positions.

        Parameters
        ----------
        *names : str
            Of outputs and of inputs, with their names in `run`; ``sink:NAME`` or ``source:NAME`` if both have the name.

        Raises
        ------
        SpecError
            For a name that is not attached, or that a sink and a source have.

        Notes
        -----
        Tables stay as they are. A source attached later is read from its beginning. O(what changed).
        """
        self.calls.settled("detach")
        detach(EngineEpochs(self.calls, "detach"), names)

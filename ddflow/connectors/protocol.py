"""What an engine asks of a target: fragments of updates, each seen once.

Invariant: a connector knows no engine, no plan and no step. Tables, positions and the names of outputs are all that
passes between the two, so an engine in this process and tasks on Spark drive a connector alike. What a sink shows is of
committed epochs, each once, because it is told of an epoch after the state's manifest is durable, and may be replayed
by whoever opens the state next.

>>> import os, tempfile
>>> from ddflow.connectors.parquet.sink import open_sink
>>> from ddflow.storage.memory import MemoryStore
>>> with tempfile.TemporaryDirectory() as place:
...     sink: Sink = open_sink(place, MemoryStore())
...     sink.claim("0" * 32, "memory", ["counts"])
...     fragment = Fragment("counts", sink.put("counts", pa.table({"n": [1, 2]})))
...     [each.name for each in sink.unfinished()] == [fragment.blob.name]  # the manifest is published now
...     sink.finish(7, [fragment])
...     sink.unfinished(), sink.rows(7, fragment)
True
([], 2)
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from ddflow.storage.protocol import Blob


class Fragment(NamedTuple):
    """Gain of one ``output`` from one call or task: the ``blob`` from `Sink.put`, by its name in a manifest."""

    output: str
    blob: Blob


class Owner(NamedTuple):
    """Owner of a target: the id of the ``state``, and its address ``at`` the claim, since a copy has the same id."""

    state: str
    at: str


class Leftover(NamedTuple):
    """Fragment in a target that may belong to no committed epoch.

    It may belong to a running commit, in this process or another. Only its age shows that, so both times must be true.

    ``place``: for messages.  ``name``: of its blob.  ``written``: unix seconds.  ``age``: seconds since then, by the
    target's clock.
    """

    place: str
    name: str
    written: float
    age: float


class Sink(Protocol):
    """Where the updates of committed epochs go.

    An epoch goes to a sink in two moves, as in Trino's connectors: tasks `put` fragments, which last and which nobody
    sees; the driver publishes the manifest that names them, and then has the sink `finish` the epoch. In between lies
    the commit, so a crash leaves either fragments that no manifest names, which are collected (`unfinished`,
    `discard`), or a committed epoch that is not shown, which whoever opens the state next finishes.

    A target that has transactions of its own keeps what is put in the state; its `finish` is one transaction, in which
    it also remembers the epoch, so that a second one does nothing. Nothing of it is left over then.

    The calls of a life, in their order:

    1. `check`, then `claim`: by the driver, when a state is opened.  `finish`: for all epochs that its newest manifest
       can give again.
    2. `put`: by an engine for each call, by each task for its part.  `sync`: by who put, before he tells of it.
    3. The manifest is published.  `finish`: for its epoch.  `sync`: before the next manifest is published.
    4. `size`, `read`: for epochs that are given again, and by readers of the state elsewhere.
    5. `owner`, `unfinished`, `discard`: by a collection.  `owner`, `later`, `withdraw`, `sync`: by a rollback.

    Every method raises `StorageFailed` when the target cannot be reached.
    """

    @property
    def target(self) -> str:
        """Where it writes to, as the manifest names it; never with credentials."""

    def check(self, state: str | None, schemas: Mapping[str, pa.Schema]) -> None:
        """Look whether a state's outputs can go here, before anything is made.

        Parameters
        ----------
        state
            Its id; None for one that is yet to be made.
        schemas
            By output, of its updates.

        Raises
        ------
        SpecError
            For rows that the target cannot hold.
        StateRefused
            Where the target is another state's.
        CorruptState
            Where it does not say so in a way that can be read.
        """

    def claim(self, state: str, at: str, names: Iterable[str]) -> None:
        """Claim the target for a state and create its missing parts, durably.  May be repeated with more names.

        Of several states that do so at the same time one gets it.

        Parameters
        ----------
        state
            Its id, 32 hex digits.
        at
            Its address.
        names
            Of its outputs.

        Raises
        ------
        StateRefused, CorruptState
            As in `check`.
        StorageFull
        """

    def owner(self) -> Owner | None:
        """Return the owner of the target; None if it has none.  Raises `CorruptState` if the record is unreadable."""

    def claimed(self) -> str:
        """Return the place of the owner's record, for messages."""

    def put(self, name: str, table: pa.Table) -> Blob:
        """Store the updates of an output durably, but hidden.  O(rows).

        A task may run twice, so what was put may never be finished.

        Parameters
        ----------
        name
            Of the output.
        table
            Its updates; at least one.

        Returns
        -------
        Blob
            What a manifest names.  Its bytes are durable, its name is after `sync`.

        Raises
        ------
        StorageFull
        StateRefused
            Where the target is not the one that was claimed.
        """

    def sync(self) -> None:
        """Make durable what was put, finished and withdrawn before.  Raises `StorageFull`."""

    def finish(self, epoch: int, fragments: Iterable[Fragment]) -> None:
        """Show the fragments of a committed epoch.  O(fragments).

        Called once the manifest that names them is durable, in the order of epochs; and again, with the same
        fragments, by whoever opens the state, which changes nothing.  Durable after `sync`.

        Parameters
        ----------
        epoch
            Its number.
        fragments
            All of the epoch's, of every output.
        """

    def size(self, epoch: int, fragment: Fragment) -> int | None:
        """Return the bytes of a fragment, finished or not; None if it is missing.  O(1)."""

    def read(self, epoch: int, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        """Read the rows of a fragment, finished or not.  O(bytes).

        Parameters
        ----------
        epoch
            That it is of.
        fragment
            As it was finished.
        schema
            Of the updates; the rows are cast to it.

        Raises
        ------
        CorruptState
            Where it is missing, or not what was put.
        """

    def rows(self, epoch: int, fragment: Fragment) -> int:
        """Count the rows of a fragment after comparing all its bytes.  O(bytes).  Raises as `read`."""

    def place(self, epoch: int, fragment: Fragment) -> str:
        """Return the place of a fragment after its epoch is committed, for messages."""

    def called(self, name: str) -> str:
        """Return the name of an output in the target."""

    def unfinished(self) -> list[Leftover]:
        """List the hidden fragments.  O(fragments there)."""

    def discard(self, leftovers: Iterable[Leftover]) -> None:
        """Delete such fragments; one that cannot be deleted stays.  O(those)."""

    def earlier(self, name: str, epoch: int) -> str | None:
        """Return the place of an output if it shows fragments of epochs up to one, else None.  O(its fragments)."""

    def later(self, epoch: int) -> list[Leftover]:
        """List the shown fragments of epochs after one.  O(fragments there)."""

    def withdraw(self, leftovers: Iterable[Leftover]) -> None:
        """Hide shown fragments again; their age restarts.  O(fragments given); durable after `sync`."""

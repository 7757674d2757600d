"""Read one version of a state in any process, while a writer may continue.

When a snapshot is opened, its files are verified, but no index is built. A snapshot reads all partitions and stages as
a whole. The plan is stored in the state. If the plan has functions, you must also pass the flow.

Guarantees: all answers come from the same manifest, whatever the writer commits, merges or deletes meanwhile. Files
that are mapped stay readable, even if the writer deletes them. If the writer deletes files before the snapshot has
mapped them, the snapshot reads the newest version instead. If you requested a certain epoch and its files are deleted,
`SnapshotExpired` is raised.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.dataflow.budget import MemoryBudget
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.engine import checkpoint as recovery
from ddflow.engine.checkpoint import StoredInventory
from ddflow.engine.read.reads import Reading
from ddflow.errors import CorruptState, DdflowError, ErrorText, Option, SnapshotExpired, SpecError, StateRefused
from ddflow.plan.compatibility import resolve_plan
from ddflow.plan.plan import Plan
from ddflow.storage.closing import Closing
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.manifest import Manifest, load_manifest, load_newest_manifest
from ddflow.storage.opening import State, Trust, open_existing_store
from ddflow.storage.protocol import Store
from ddflow.time import Time

TRIES = 10
"""The maximum number of attempts to open a version. An attempt fails if the writer deletes the version meanwhile."""


class Snapshot(Reading, Closing):
    """A version of a state that is open for reading. `Snapshot.open` makes a snapshot.

    Use a snapshot in a ``with`` statement, or close it.

    Attributes
    ----------
    manifest : Manifest
        The manifest of the version.
    """

    def __init__(self, store: Store, manifest: Manifest | None = None, flow: Plan | None = None) -> None:
        if manifest is None or flow is None:
            raise SpecError("make a Snapshot", "it needs a version of a state", "call dd.Snapshot.open(state)")
        self.manifest = manifest
        inventories = []
        store.pin_blobs(part.name for part in manifest.inventories)
        for part in manifest.inventories:
            inventories.append(StoredInventory.read(store, part))
            store.pin_blobs(inventories[-1].text.file_names)
        super().__init__(Dataflow(flow, Graph(flow, Secret(*manifest.secret)), MemoryBudget(None, None)))
        restore_version(self.dataflow, manifest, inventories, BatchStore(store), manifest.partitions)

    @classmethod
    def open(
        cls,
        state: State,
        *,
        epoch: int | None = None,
        flow: Plan | None = None,
        trust: Trust = "owner",
    ) -> Snapshot:
        """Open a state for reading. The method writes nothing to the state.

        Parameters
        ----------
        state : str, path or Store
            The state's folder, or ``s3://bucket/prefix``.
        epoch : int, optional
            The epoch of the version. By default the newest.
        flow : Plan, optional
            The state's plan. Required if the plan has functions, because a state does not store functions.
        trust : {"owner", "group"}
            As in `Flow.open`.

        Returns
        -------
        Snapshot
            The version, which stays readable during later commits of the writer.

        Raises
        ------
        StateRefused
            If there is no state.
        SnapshotExpired
            If the epoch is not kept.
        CorruptState, PlanChanged
            For a damaged file; for a ``flow`` that differs from the state's plan.

        Notes
        -----
        O(bytes of the state): every file is verified.
        """
        with open_existing_store(state, trust=trust) as store:
            for tried in range(TRIES):
                manifest = find_version(store, epoch)
                plan = resolve_plan(manifest.plan, flow, store.where)
                try:
                    return cls(store, manifest, plan)
                except CorruptState:
                    if manifest.number in store.list_manifests():
                        raise
                    if epoch is not None or tried + 1 == TRIES:
                        raise make_expired_error(store, manifest.epoch) from None
        raise AssertionError("a try returns, goes on or raises")

    @property
    def epoch(self) -> int:
        """The number of the epoch of this version, an int."""
        return self.manifest.epoch

    def close(self) -> None:
        """Free the memory of the snapshot and close its files. A second call does nothing."""
        with self.dataflow.guard.lock_in_any_state("close"):
            self.dataflow.close()


def restore_version(
    dataflow: Dataflow,
    manifest: Manifest,
    inventories: Sequence[StoredInventory],
    batch_store: BatchStore,
    partitions: int = 1,
) -> None:
    """Fill a new dataflow from the inventories of a version, so that it can be read.

    ``partitions``: see `restore_dataflow`.
    """
    dataflow.recent.mark_ended()
    dataflow.fed, dataflow.sources = manifest.fed, dict(manifest.sources)
    dataflow.frontier, dataflow.last, dataflow.since = manifest.frontier, manifest.last, manifest.since
    recovery.restore_dataflow(dataflow, inventories, batch_store, indexed=False, sieved=False, partitions=partitions)


def read(
    state: State,
    name: str,
    as_of: Time | None = None,
    *,
    epoch: int | None = None,
    flow: Plan | None = None,
    trust: Trust = "owner",
) -> pa.Table:
    """Read an output or an input of a state as of the last commit of the state.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    name : str
        The output or input.
    as_of : int, date, datetime or str, optional
        A time not before the state's ``since``. By default the last closed time.
    epoch, flow, trust
        As in `Snapshot.open`.

    Returns
    -------
    pyarrow.Table
        The row's columns, then ``_diff`` (int64), consolidated.

    Raises
    ------
    NotReadable
        For an unknown name, or a time that cannot be read.
    DdflowError
        The errors of `Snapshot.open`.

    Notes
    -----
    O(bytes of the state).

    Examples
    --------
    >>> import tempfile, os, ddflow as dd
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", people.project(["city"]).count())
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with flow.open(os.path.join(place, "people")) as engine:
    ...         _ = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
    ...     read(os.path.join(place, "people"), "by_city").to_pylist()
    [{'city': 'Bern', 'count': 2, '_diff': 1}]
    """
    with Snapshot.open(state, epoch=epoch, flow=flow, trust=trust) as snapshot:
        return snapshot.read(name, as_of)


def find_version(store: Store, epoch: int | None = None) -> Manifest:
    """Find the newest manifest. If ``epoch`` is given, find the last manifest of this epoch. O(manifests).

    Raises `StateRefused` if there is no state. Raises `SnapshotExpired` if the epoch is not kept.
    """
    manifest = load_newest_manifest(store)
    if manifest is None:
        raise StateRefused(f"read {store.where}", "there is no state", "create a new state with flow.open")
    if epoch is None or manifest.epoch == epoch:
        return manifest
    for number in reversed(store.list_manifests()):
        try:
            manifest = load_manifest(store, number)
        except DdflowError:
            continue  # deleted meanwhile, or damaged but not requested
        if manifest.epoch == epoch:
            return manifest
    raise make_expired_error(store, epoch)


def make_expired_error(store: Store, epoch: int) -> SnapshotExpired:
    """Make the error for an epoch whose version is not kept."""
    return SnapshotExpired(
        f"epoch {epoch} of {store.where}",
        "that version is no longer kept, or not committed yet",
        ErrorText("read the newest version, or keep versions longer with ", Option("grace")),
    )

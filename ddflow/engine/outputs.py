"""Write the outputs of a state to a folder of fragments or to files of the state, and publish committed fragments.

A state can be opened with a different folder each time. If an epoch is replayed, its outputs are searched in the old
and the new folder. When a manifest names the new folder, fragments of the old folder are no longer read. Guarantees:
the fragments that a manifest's receipts name are published durably before a later manifest is published. The later
manifest can omit these fragments. Every process that opens the state publishes these fragments, whatever its folder of
outputs. So if no version names an unpublished fragment, the fragment was never committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from ddflow.connectors.parquet.sink import Fragment, OutputFolder, open_output_folder
from ddflow.errors import StateRefused
from ddflow.storage.epochs import Epoch, Output
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.inventory_text import is_state_file
from ddflow.storage.manifest import Manifest
from ddflow.storage.protocol import Store


class Outputs:
    """The folders to which a state's outputs are written.

    ``sink``: the current folder; None if outputs are files of the state. ``before``: the folder of the newest manifest,
    if it differs from ``sink``.

    >>> import os, tempfile
    >>> from ddflow.storage.memory import MemoryStore
    >>> with tempfile.TemporaryDirectory() as place:
    ...     outputs = Outputs.open(place, MemoryStore(), None, {}, "owner")
    ...     outputs.sink_path == os.path.realpath(place), os.listdir(place)
    (True, [])
    """

    def __init__(self, sink: OutputFolder | None, before: OutputFolder | None) -> None:
        self.sink, self.before = sink, before
        self.sinks = [each for each in (sink, before) if each is not None]

    @classmethod
    def open(
        cls,
        given: str | os.PathLike[str] | None,
        store: Store,
        manifest: Manifest | None,
        schemas: Mapping[str, pa.Schema],
        trust: str,
    ) -> Outputs:
        """Check a folder for the outputs of a state, without writing to the folder. O(columns).

        ``manifest``: the newest manifest, None for a new state. ``schemas``: the schema of each output. Raises the
        errors of `OutputFolder.check_claim`.
        """
        sink = before = None
        if given is not None:
            sink = open_output_folder(given, store, trust)
            sink.check_claim(None if manifest is None else manifest.id, schemas)
        if manifest is not None and manifest.folder not in (None, sink and sink.target):
            before = open_output_folder(str(manifest.folder), store, trust)
        return cls(sink, before)

    @property
    def sink_path(self) -> str | None:
        """The path of the folder; None if outputs are stored as files of the state."""
        return None if self.sink is None else self.sink.target

    @property
    def has_new_sink(self) -> bool:
        """Whether the folder differs from the folder in the newest manifest."""
        return self.sink is not None and self.before is not None

    def check_dropped_outputs(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Raise `StateRefused` if the folder has updates of a dropped output whose name a new output uses.

        O(files of dropped outputs whose names are used again).
        """
        for name in names if self.sink is not None else ():
            last = manifest.dropped.get(name)
            place = None if last is None or self.sink is None else self.sink.find_published_folder(name, last)
            if place is not None:
                raise StateRefused(
                    f"write {name!r} to {place}",
                    f"it has the updates of an output that was dropped at epoch {last}, but this is a new output; the "
                    "sum of both would match neither",
                    "move that folder away, pass another outputs=, or rename the output",
                )

    def claim_sink(self, manifest: Manifest, store: Store, names: Iterable[str]) -> None:
        """Claim the folder for a state with `OutputFolder.claim`, before the first file of the state is written to it.

        O(outputs).
        """
        if self.sink is not None:
            self.sink.claim(manifest.id, store.where, names)

    def publish_fragments(self, receipts: Iterable[Epoch]) -> None:
        """Publish the fragments of committed epochs. Published fragments become durable with the next `sync_sinks`.

        O(fragments). Raises `StorageFailed`.
        """
        for receipt in receipts if self.sinks else ():
            fragments = list(list_fragments(receipt))
            for sink in self.sinks:
                sink.publish_epoch(receipt.epoch, fragments)

    def sync_sinks(self) -> None:
        """Make all written and published fragments durable. Raises `StorageFull`, `StorageFailed`."""
        for sink in self.sinks:
            sink.sync()

    def select_readable_receipts(self, receipts: Sequence[Epoch]) -> tuple[Epoch, ...]:
        """Return the receipts of the newest epochs, as far back as the next manifest's folder can replay without a gap.

        O(number of fragments of the epochs).
        """
        sink = self.sink
        if sink is None or not self.has_new_sink:
            return tuple(receipts)
        gone = [
            not all(sink.find_fragment_size(each.epoch, one) is not None for one in list_fragments(each))
            for each in receipts
        ]
        return tuple(receipts[len(gone) - gone[::-1].index(True) :] if True in gone else receipts)

    def read_fragment(self, epoch: int, fragment: Fragment, schema: pa.Schema, batches: BatchStore) -> pa.Table:
        """Read the rows of a fragment, either from its folder or from the state. O(bytes). Raises `CorruptState`."""
        if is_state_file(fragment.blob):
            return batches.read_table(fragment.blob, schema, None)
        found = next(
            (each for each in self.sinks if each.find_fragment_size(epoch, fragment) is not None), self.sinks[-1]
        )
        return found.read_fragment(epoch, fragment, schema)


def write_output(sink: OutputFolder | None, batches: BatchStore, name: str, table: pa.Table) -> Output:
    """Write the updates of an output to ``sink``, or to the state if ``sink`` is None. O(rows).

    Raises the errors of `OutputFolder.write_fragment`.
    """
    blob = batches.write_table(table.to_batches(), table.schema) if sink is None else sink.write_fragment(name, table)
    return Output((blob,), table.num_rows)


def open_owned_folder(store: Store, manifest: Manifest | None, deleting: bool) -> OutputFolder | None:
    """Open the folder that a manifest names. Return None if the folder belongs to another state. O(1).

    ``deleting``: whether to open the folder only if its owner is this state at this place, because a copy of a state
    may lack later commits. Raises `StorageFailed`. Raises `CorruptState` if the owner record is damaged.
    """
    if manifest is None or manifest.folder is None:
        return None
    sink = open_output_folder(manifest.folder, store)
    owner = sink.read_owner()
    if owner is None:
        return None if deleting else sink
    return sink if owner.state == manifest.id and (owner.at == store.where or not deleting) else None


def list_fragments(receipt: Epoch) -> Iterable[Fragment]:
    """List the fragments that an epoch wrote to a folder. O(fragments)."""
    for call in receipt.calls:
        for name, output in call.outputs.items():
            yield from (Fragment(name, blob) for blob in output.blobs if not is_state_file(blob))

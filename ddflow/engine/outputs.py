"""Keep the outputs of a state: in a folder of fragments, or as files of the state, and publish committed ones.

The folder may change between two openings. A replayed epoch is searched in both folders. Once a manifest names the new
one, fragments of the old one are no longer read.
Guarantees: the fragments in a manifest's receipts are published, durably, before a later manifest, which may omit them.
Every process that opens the state does this, with any folder or none. So an unpublished fragment that no version names
was never committed.
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
    """The folders of a state's outputs.

    ``sink``: the current folder, None for the state itself. ``before``: the folder of the newest manifest, if it is
    another one.

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
        """Check a folder for a state's outputs, and write nothing. O(columns).

        ``manifest``: the newest manifest, None for a new state. ``schemas``: by output. Raises the errors of
        `OutputFolder.check_claim`.
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
        """The path of the folder; None for the state itself."""
        return None if self.sink is None else self.sink.target

    @property
    def has_new_sink(self) -> bool:
        """Whether the folder differs from the one in the newest manifest."""
        return self.sink is not None and self.before is not None

    def check_dropped_outputs(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Raise `StateRefused` if a new output has the name of a dropped one whose updates are in the folder.

        O(files of such outputs).
        """
        for name in names if self.sink is not None else ():
            last = manifest.dropped.get(name)
            place = None if last is None or self.sink is None else self.sink.find_published_folder(name, last)
            if place is not None:
                raise StateRefused(
                    f"write {name!r} to {place}",
                    f"it has the updates of the output that was dropped at epoch {last}, and this is a new one: the "
                    "sum of both would be none's",
                    "move that folder away, or give another outputs=, or the output another name",
                )

    def claim_sink(self, manifest: Manifest, store: Store, names: Iterable[str]) -> None:
        """Claim the folder for a state, before the first file is written. O(outputs). Like `OutputFolder.claim`."""
        if self.sink is not None:
            self.sink.claim(manifest.id, store.where, names)

    def publish_fragments(self, receipts: Iterable[Epoch]) -> None:
        """Publish the fragments of committed epochs; durable after `sync_sinks`. O(fragments).

        Raises `StorageFailed`.
        """
        for receipt in receipts if self.sinks else ():
            fragments = list(list_fragments(receipt))
            for sink in self.sinks:
                sink.publish_epoch(receipt.epoch, fragments)

    def sync_sinks(self) -> None:
        """Make written and published fragments durable. Raises `StorageFull`, `StorageFailed`."""
        for sink in self.sinks:
            sink.sync()

    def select_readable_receipts(self, receipts: Sequence[Epoch]) -> tuple[Epoch, ...]:
        """Keep the last epochs that the folder of the next manifest can replay, without a gap. O(their fragments)."""
        sink = self.sink
        if sink is None or not self.has_new_sink:
            return tuple(receipts)
        gone = [
            not all(sink.find_fragment_size(each.epoch, one) is not None for one in list_fragments(each))
            for each in receipts
        ]
        return tuple(receipts[len(gone) - gone[::-1].index(True) :] if True in gone else receipts)

    def read_fragment(self, epoch: int, fragment: Fragment, schema: pa.Schema, batches: BatchStore) -> pa.Table:
        """Read the rows of a fragment from its folder or from the state. O(bytes). Raises `CorruptState`."""
        if is_state_file(fragment.blob):
            return batches.read_table(fragment.blob, schema, None)
        found = next(
            (each for each in self.sinks if each.find_fragment_size(epoch, fragment) is not None), self.sinks[-1]
        )
        return found.read_fragment(epoch, fragment, schema)


def write_output(sink: OutputFolder | None, batches: BatchStore, name: str, table: pa.Table) -> Output:
    """Write the updates of an output. ``sink``: None for the state. O(rows).

    Raises the errors of `OutputFolder.write_fragment`.
    """
    blob = batches.write_table(table.to_batches(), table.schema) if sink is None else sink.write_fragment(name, table)
    return Output((blob,), table.num_rows)


def open_owned_folder(store: Store, manifest: Manifest | None, deleting: bool) -> OutputFolder | None:
    """Open the folder that a manifest names, unless it belongs to another state; then return None. O(1).

    ``deleting``: open it only if its owner is this state at this place, because a copy of a state knows fewer commits.
    Raises `CorruptState` for a damaged owner record, `StorageFailed`.
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

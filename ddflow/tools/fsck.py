"""Check every file of a state: compare each file with its checksum, and check that the files agree with each other.

Guarantees: `fsck` does not change or delete a file. Each problem names its file. A file that ddflow did not write is
not a problem. The report lists such files separately.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.connectors.parquet.sink import Fragment, open_output_folder
from ddflow.dataflow.graph import Graph
from ddflow.engine.checkpoint import Inventories, StoredInventory
from ddflow.errors import CommandFix, DdflowError, ErrorText, SpecError
from ddflow.metrics import Look
from ddflow.operators.inputs import open_input
from ddflow.partitions.stages import compute_placements, find_partition_columns
from ddflow.plan.collection import Columns
from ddflow.plan.compatibility import resolve_plan
from ddflow.plan.evolve import PastSchemas, find_past_schemas
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import compute_node_ids, fingerprint_plan, read_bindings
from ddflow.storage.backlog import Backlog
from ddflow.storage.files.arrow_file import read_batches
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.folder.site import INSIDE, TEMPORARY
from ddflow.storage.inventory_text import is_state_file, load_inventory_sections
from ddflow.storage.manifest import Epoch, Manifest
from ddflow.storage.manifest_log import hash_manifest
from ddflow.storage.opening import State, Trust, open_existing_store
from ddflow.storage.protocol import Blob, BlobEntry, Store
from ddflow.terminal import format_size
from ddflow.tools.inventory_check import (
    AlreadyReportedDamage,
    CachedBatchStore,
    EmptyOperators,
    InventoryCheck,
    check_collections,
    find_attachment_faults,
    find_feed_faults,
)


class FsckProblem(NamedTuple):
    """A problem that `fsck` found in a file.

    ``file``: name of the file in the state, or its path.  ``found``: the fault.  ``manifest``: the newest manifest that
    names the file; None for a problem of the whole state.
    """

    file: str
    found: str
    manifest: int | None = None


@dataclass
class FsckReport:
    """The result of `fsck`. Printing it shows the report as text.

    Attributes
    ----------
    where : str
        The state.
    epoch : int
        The epoch of the newest readable manifest; -1 without one.
    manifests : int
        The number of kept manifests.
    files, bytes : int
        The number of files in these manifests, and their bytes, all read and compared.
    problems : list of FsckProblem
        All problems.
    garbage, garbage_bytes : int or None
        Files that no kept manifest names, and their bytes; None if some manifest or inventory is unreadable.
    ignored : list of str
        Files that ddflow did not write.
    notes : list of str
        Parts that were not checked, with the reason.

    >>> report = FsckReport("state/orders", epoch=3)
    >>> report.add_problem("blobs/x.arrow", "it is missing")
    >>> report.ok, str(report).splitlines()[1]
    (False, '  blobs/x.arrow: it is missing')
    """

    where: str
    epoch: int = -1
    manifests: int = 0
    files: int = 0
    bytes: int = 0
    garbage: int | None = 0
    garbage_bytes: int | None = 0
    problems: list[FsckProblem] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if the report has no problem."""
        return not self.problems

    def add_problem(self, file: str, found: str, manifest: int | None = None) -> None:
        """Add a problem of a file, unless the report has it already."""
        if not any(each.file == file and each.found == found for each in self.problems):
            self.problems.append(FsckProblem(file, found, manifest))

    def add_note(self, text: str) -> None:
        """Add a note about an unchecked part, unless the report has it already."""
        if text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain values."""
        return {"ok": self.ok} | asdict(self) | {"problems": [each._asdict() for each in self.problems]}

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> ErrorText:
        """Report as text for users."""
        size = f"{self.files:,} files of {format_size(self.bytes)} that {self.manifests:,} manifests name"
        if self.ok:
            lines: list[str] = [f"{self.where}, epoch {self.epoch}: no problems; {size}, each read and compared"]
        else:
            lines = [f"{self.where}: {len(self.problems):,} PROBLEMS in {size}"]
        lines += [f"  {each.file}: {each.found}" for each in self.problems]
        lines += [f"  note: {each}" for each in self.notes]
        if self.garbage is None:
            lines.append("  garbage: unknown, because some manifests or inventories cannot be read")
        elif self.garbage:
            files = f"{self.garbage:,} files of {format_size(self.garbage_bytes or 0)}"
            lines.append(ErrorText(f"  garbage: {files} that no manifest names; ", CommandFix("gc"), " removes them"))
        lines += [f"  ignored, because ddflow did not write it: {each}" for each in self.ignored]
        return ErrorText.join_texts("\n", lines)


NAMED: Final = re.compile(r"[0-9a-f]{16}-[0-9]{1,12}\.(?:arrow|json)")
"""Pattern of the name of a file in a state."""
_NUMBER: Final = re.compile(r"[0-9]{16}")


def list_foreign_files(store: LocalStore) -> Iterator[str]:
    """List the files in a state's folder that ddflow did not write.  O(names).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = LocalStore(place)
    ...     with open(f"{place}/notes.txt", "w") as file:
    ...         _ = file.write("mine")
    ...     found = list(list_foreign_files(store))
    ...     store.close()
    >>> found
    ['notes.txt']
    """
    place = store.site
    for name in sorted(store.disk.names(place.path)):
        if name not in (*INSIDE, "spill"):
            yield name
    ours = {
        "blobs": re.compile(rf"{NAMED.pattern}|[0-9a-f]{{16}}-[0-9]+\.part"),
        "marks": _NUMBER,
        "manifests": re.compile(f"{_NUMBER.pattern}|{TEMPORARY.pattern}"),
    }
    for folder, known in ours.items():
        names = store.disk.names(place.child_path(folder)) if folder in store.disk.names(place.path) else []
        yield from (f"{folder}/{name}" for name in sorted(names) if not known.fullmatch(name))


def fsck(
    state: State,
    *,
    flow: Plan | None = None,
    trust: Trust = "owner",
    look: Look = lambda size: None,
) -> FsckReport:
    """Check every byte of a state: all kept manifests, all files that they name, and the contents of these files.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, ``s3://bucket/prefix``, or a store.
    flow : Plan, optional
        The plan of the state; needed if it has functions.
    trust : {"owner", "group"}
        See `Flow.open`.
    look : callable, optional
        Progress callback: receives the number of bytes read since its last call.

    Returns
    -------
    FsckReport
        All problems of the files; ``ok`` if there are none.

    Raises
    ------
    StateRefused
        If there is no state.
    StorageFailed
        If the place of the state cannot be read.

    Notes
    -----
    O(bytes) time, with memory for the bookkeeping of the newest version.

    >>> import ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> _ = flow.output("out", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
    >>> with flow.open(store) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1], "city": ["Bern"]})}, time=1)
    >>> report = fsck(store)
    >>> report.ok, report.epoch, report.manifests, report.files
    (True, 1, 2, 3)
    >>> name, (data, put) = next(each for each in store.shared.blobs.items() if each[0].endswith("arrow"))
    >>> store.shared.blobs[name] = data[:-1], put
    >>> [(each.file == f"blobs/{name}", each.found.split(" with")[1][:9]) for each in fsck(store).problems]
    [(True, ' checksum')]
    """
    with open_existing_store(state, trust=trust) as store:
        return _StateCheck(store, flow, look).run()


class _StateCheck:
    """A single run of `fsck` on a state."""

    def __init__(self, store: Store, flow: Plan | None, look: Look) -> None:
        self.store, self.flow, self.look, self.report = store, flow, look, FsckReport(store.where)
        self.damaged, self.compared = set[str](), dict[Blob, pa.Buffer | None]()
        self.files = set[Blob | tuple[str, Blob]]()
        self.named, self.all_named = set[str](), True
        """The names of the files in manifests, and whether all manifests and inventories were readable."""
        self.made_of: dict[int, str] = {}
        """Expected digest of each manifest, which the next manifest records."""
        self.batch_store, self.seen = CachedBatchStore(store, self.damaged), set[str]()

    def run(self) -> FsckReport:
        """Check the state and return the report."""
        entries = self.store.list_blobs()
        marked, numbers = self.store.find_last_published(), self.store.list_manifests()
        if marked > max(numbers, default=-1):
            self.report.add_problem(manifest_file_name(marked), "it was committed, but it is missing")
        elif not numbers:
            self.report.add_problem("manifests", "there is no manifest")
        for number in reversed(numbers):
            with self._report_errors(manifest_file_name(number), number):
                self._check_manifest(number)
        self._count_garbage(entries)
        if isinstance(self.store, LocalStore):
            self.report.ignored.extend(list_foreign_files(self.store))
        # A writer may have removed old manifests, and their files, during the check.
        there = set(self.store.list_manifests())
        self.report.problems = [p for p in self.report.problems if p.manifest is None or p.manifest in there]
        self.report.files = len(self.files)
        self.report.bytes = sum((each if isinstance(each, Blob) else each[1]).length for each in self.files)
        return self.report

    @contextmanager
    def _report_errors(self, file: str, number: int) -> Iterator[None]:
        """Report an error in the block as a problem of the file in the error message, or by default of ``file``."""
        try:
            yield
        except AlreadyReportedDamage:
            pass
        except DdflowError as error:
            self.all_named &= not file.startswith("manifests/")
            named = NAMED.search(error.asked) or NAMED.search(error.found)
            if named is not None:
                file = f"blobs/{named[0]}"
            # In the message, the place within the file follows the name of the file.
            within = error.asked.rpartition(f" of {self.store.where}, ")[2] if ", " in error.asked else ""
            self.report.add_problem(file, f"{within}: {error.found}" if within else error.found, number)
        except AssertionError as error:
            self.report.add_problem(file, f"an invariant does not hold ({str(error)[:200] or 'see ddflow'})", number)
        except Exception as error:  # the check continues with the other files
            self.report.add_problem(file, f"{type(error).__name__}: {str(error)[:200]}", number)
            self.all_named &= not file.startswith("manifests/")

    def _check_manifest(self, number: int) -> None:
        self.report.manifests += 1
        data = self.store.read_manifest(number)
        manifest = Manifest.decode(data, number, self.store.where)
        if self.made_of.get(number, "") not in ("", hash_manifest(data)):
            why = "a fenced writer published it, and the next manifest does not continue it"
            self.report.add_note(f"{manifest_file_name(number)} does not count: {why}")
        self.made_of[number - 1] = manifest.previous
        newest = self.report.epoch < 0
        if newest:
            self.report.epoch = manifest.epoch
            self._check_output_folder(manifest)
        if fingerprint_plan(manifest.plan) != manifest.fingerprint:
            self.report.add_problem(manifest_file_name(number), "its fingerprint does not match its plan", number)
        if manifest.epoch and not manifest.inventories:
            self.report.add_problem(
                manifest_file_name(number), f"it has epoch {manifest.epoch}, but names no inventory", number
            )
        flow = self._load_plan(manifest)
        for found in find_feed_faults(manifest):
            self.report.add_problem(manifest_file_name(number), found, number)
        kept = dict[int, str]()
        for receipt in self._read_receipts(manifest):
            kept[receipt.epoch] = receipt.digest
            self._check_receipt(manifest, receipt, flow)
        for found in find_attachment_faults(manifest, kept):
            self.report.add_problem(manifest_file_name(number), found, number)
        inventories = [
            self._check_inventory(manifest, flow, place, newest) for place in range(len(manifest.inventories))
        ]
        whole = [each for each in inventories if each is not None]
        if whole and len(whole) == len(inventories):
            with self._report_errors(manifest_file_name(number), number):
                check_collections(Inventories(whole, manifest.partitions), self._open_operators(manifest, flow))

    def _check_inventory(
        self, manifest: Manifest, flow: Plan | None, place: int, newest: bool
    ) -> StoredInventory | None:
        """Check an inventory and all files that it names. Return None if the inventory cannot be read."""
        part, number = manifest.inventories[place], manifest.number
        stored, guard = cast(StoredInventory | None, None), partial(self._report_errors, f"blobs/{part.name}", number)
        with guard():
            stored = self._load_inventory(part, number)
        if stored is None:
            self.all_named = False
            return None
        for blob in stored.text.files:
            self.named.add(blob.name)
            self._verify_blob_once(blob, number)
        with guard():
            at, operators = place % manifest.partitions, self._open_operators(manifest, flow)
            InventoryCheck(manifest, at, operators, self.batch_store, guard, self.seen, newest).run(stored)
        return stored

    def _load_inventory(self, part: Blob, number: int) -> StoredInventory | None:
        """Load an inventory, and compare each section with its checksum. Return None if a section differs."""
        fetch = partial(self._fetch_blob, number=number)
        text = load_inventory_sections(fetch(part), self._describe_blob(part), fetch)
        whole = all(self.compared[each] is not None for each in (part, *text.sections))
        return StoredInventory.parse(text, self._describe_blob(part)) if whole else None

    def _describe_blob(self, blob: Blob) -> str:
        return f"the file {blob.name} of {self.store.where}"

    def _load_plan(self, manifest: Manifest) -> Plan | None:
        """Load the plan of a manifest.

        Return None if the plan is damaged. Return None also if the plan needs Python functions and ``flow`` is None.
        """
        with self._report_errors(manifest_file_name(manifest.number), manifest.number):
            try:
                return resolve_plan(manifest.plan, self.flow, self.store.where)
            except SpecError as error:
                self.report.add_note(
                    f"{error.found}, so files of counts and outputs were only compared with their checksums; to check "
                    "their contents, pass the flow"
                )
        return None

    def _open_operators(self, manifest: Manifest, flow: Plan | None) -> EmptyOperators:
        """Open new operators for the plan of a manifest. If the flow is unknown, open only the inputs."""
        secret = Secret(*manifest.secret)
        if flow is None:
            given = read_bindings(manifest.plan, self.store.where)
            return EmptyOperators({name: open_input(bound, secret) for name, bound in given.items()}, None, {})
        graph, ids = Graph(flow, secret), compute_node_ids(flow)
        by: dict[str, Columns] = {}
        if manifest.partitions > 1:
            places = compute_placements(flow)
            told = {
                ids[node]: find_partition_columns(node, places[node])
                for node, each in graph.keeping.items()
                if each.arrangements
            }
            by = {name: columns for name, columns in told.items() if columns is not None}
        kept = {ids[node]: each for node, each in graph.keeping.items() if each.arrangements}
        return EmptyOperators(graph.inputs, kept, by)

    def _fetch_blob(self, blob: Blob, number: int) -> bytes | pa.Buffer:
        self.named.add(blob.name)
        return self._verify_blob_once(blob, number) or b""

    def _verify_blob_once(self, blob: Blob, number: int) -> pa.Buffer | None:
        """Compare a blob with its checksum, only once, and return its bytes.

        For a damaged blob, report a problem and return None.
        """
        if blob not in self.compared:
            self.compared[blob] = None
            self.files.add(blob)
            # Read from the store itself, not from its cache.
            fetch = getattr(self.store, "fetch", self.store.map_blob)
            with self._report_errors(f"blobs/{blob.name}", number):
                self.compared[blob] = fetch(blob)
            if self.compared[blob] is None:
                self.damaged.add(blob.name)
            self.look(blob.length)
        return self.compared[blob]

    def _read_receipts(self, manifest: Manifest) -> Iterator[Epoch]:
        """Yield all receipts of a version.  An unreadable backlog file is reported, and its receipts are skipped."""
        fetch = partial(self._fetch_blob, number=manifest.number)
        for part in manifest.backlog:
            with self._report_errors(f"blobs/{part.file.name}", manifest.number):
                yield from Backlog(self.store, fetch).list_receipts([part])
            self.all_named &= part.file.name not in self.damaged
        yield from manifest.receipts

    def _check_receipt(self, manifest: Manifest, receipt: Epoch, flow: Plan | None) -> None:
        for call in receipt.calls:
            for name, output in call.outputs.items():
                found = [self._count_output_rows(manifest, receipt.epoch, name, blob, flow) for blob in output.blobs]
                rows = sum(each for each in found if each is not None)
                if None not in found and rows != output.rows:
                    self.report.add_problem(
                        self._output_path(manifest, receipt.epoch, name, output.blobs[0]),
                        f"it and the other {len(output.blobs) - 1} files of {name!r} have {rows:,} rows, but the "
                        f"manifest says {output.rows:,}",
                        manifest.number,
                    )

    def _check_output_folder(self, manifest: Manifest) -> None:
        """Check that the folder of outputs belongs to this state."""
        if manifest.folder is None:
            return
        sink = open_output_folder(manifest.folder, self.store)
        file = sink.record_path
        with self._report_errors(file, manifest.number):
            owner = sink.read_owner()
            if owner is not None and owner.state != manifest.id:
                self.report.add_problem(
                    file,
                    f"the folder belongs to the state with the id {owner.state}, but this state's id is {manifest.id}",
                    manifest.number,
                )

    def _output_path(self, manifest: Manifest, epoch: int, name: str, blob: Blob) -> str:
        if is_state_file(blob):
            return f"blobs/{blob.name}"
        return open_output_folder(str(manifest.folder), self.store).build_fragment_path(epoch, Fragment(name, blob))

    def _count_output_rows(
        self, manifest: Manifest, epoch: int, name: str, blob: Blob, flow: Plan | None
    ) -> int | None:
        """Count the rows of an output file. Return None if the file was checked before or cannot be read."""
        if not is_state_file(blob):
            return self._count_fragment_rows(manifest, epoch, Fragment(name, blob))
        self.named.add(blob.name)
        whole = self._verify_blob_once(blob, manifest.number)
        past = find_past_schemas(
            [PastSchemas.from_record(each, manifest_file_name(manifest.number)) for each in manifest.past], epoch
        )
        then = None if past is None else past.outputs.get(name)
        schema = then or (None if flow is None else flow.updates_schema(name))
        if whole is None or schema is None or blob.name in self.seen:
            return None
        self.seen.add(blob.name)
        with self._report_errors(f"blobs/{blob.name}", manifest.number):
            return sum(int(batch.num_rows) for batch in read_batches(whole, schema, None, self._describe_blob(blob)))
        return None

    def _count_fragment_rows(self, manifest: Manifest, epoch: int, fragment: Fragment) -> int | None:
        """Check that a file in the output folder is present and complete, and return its number of rows."""
        sink, number, blob = open_output_folder(str(manifest.folder), self.store), manifest.number, fragment.blob
        path = sink.build_fragment_path(epoch, fragment)
        if (path, blob) in self.files:
            return None
        self.files.add((path, blob))
        with self._report_errors(path, number):
            if sink.find_fragment_size(epoch, fragment) is None:
                self.report.add_problem(path, f"it is missing, so epoch {epoch} cannot be repeated", number)
                return None
            rows = sink.count_rows(epoch, fragment)
            self.look(blob.length)
            return rows
        return None

    def _count_garbage(self, entries: list[BlobEntry]) -> None:
        left = [entry for entry in entries if entry.name not in self.named]
        found = len(left), sum(entry.length for entry in left)
        self.report.garbage, self.report.garbage_bytes = found if self.all_named else (None, None)


def manifest_file_name(number: int) -> str:
    """Return the name of a manifest's file within its state."""
    return f"manifests/{number:016d}"

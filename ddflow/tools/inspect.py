"""Describe the parts of a state from its manifest and inventories, without reading a data file.

>>> import ddflow as dd, pyarrow as pa
>>> from ddflow.storage.memory import MemoryStore
>>> flow, store = dd.Flow(), MemoryStore()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open(store) as engine:
...     _ = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=7)
>>> found = inspect(store)
>>> found["epoch"], found["last"], found["inputs"]["people"]["keys"], found["outputs"]
(1, 7, 2, {'by_city': "people.project(['city']).count(by=['city'])"})
"""

import json
import time
from datetime import UTC, datetime
from typing import Any

from msgspec import to_builtins

from ddflow.connectors.parquet.folder import build_folder_name
from ddflow.dataflow.inflow import add_to_counts
from ddflow.dataflow.result import NAMES
from ddflow.engine.checkpoint import Inventory, StoredInventory
from ddflow.engine.snapshot import find_version
from ddflow.errors import DdflowError
from ddflow.plan.text.codec import format_node, list_columns, read_input_specs, read_time_type
from ddflow.plan.text.formulas import JsonRecord
from ddflow.storage.backlog import Backlog
from ddflow.storage.epochs import AttachedSource
from ddflow.storage.feeding import FeedHistory
from ddflow.storage.manifest import Epoch, Manifest, load_manifest
from ddflow.storage.opening import State, Trust, open_existing_store
from ddflow.storage.protocol import Store
from ddflow.trace.records import ArrangementRecord, RunRecord


def inspect(state: State, *, trust: Trust = "owner") -> dict[str, Any]:
    """Describe the parts of a state from its manifest and inventories.  O(inventories).

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    trust : {"owner", "group"}
        See `Flow.open`.

    Returns
    -------
    dict
        Plain values for ``json.dumps``.  ``frontier``, ``last`` and ``since`` are numbers in the unit of ``time_type``.

        - ``state``, ``id``, ``manifest`` (its number), ``epoch``, ``written`` (ISO), ``note``, ``writer``;
        - ``inputs``, ``operators``: keys, tombstones, versions, runs, merges, files and bytes of each.  An input also
          has its plan, its pending events, and ``fed``: its last runs of equal calls, and the counts of earlier calls;
        - ``verdicts``: counts; ``outputs``: each as text; ``folder``: the folder of output files, and its subfolders;
        - ``receipts``: the last epochs, with the ``origin`` of their rows and their files;
        - ``versions``: the kept manifests; ``files``, ``bytes``: totals; ``partitions``, ``stages``: their numbers;
        - ``sources``: positions, columns ``left_out`` and ``added`` by input, and ``reached``, in Unix milliseconds;
        - ``sinks``: the last acknowledged epochs, and the waiting epochs and bytes;
        - ``parts``: keys, pending events, files and bytes of each stage and partition;
        - ``fed``: the query that feeds the state in batches, and its last batch.

    Raises
    ------
    StateRefused, CorruptState
        If there is no state; if the newest manifest or one of its inventories is damaged.
    """
    with open_existing_store(state, trust=trust) as store:
        manifest, where = find_version(store), store.where
        outputs = JsonRecord(manifest.plan, f"the plan of {where}").read_record("outputs")
        out: dict[str, Any] = {
            "state": where,
            "id": manifest.id,
            "manifest": manifest.number,
            "epoch": manifest.epoch,
            "written": format_timestamp(manifest.written),
            "note": manifest.note,
            "writer": manifest.nonce,
            "frontier": manifest.frontier,
            "last": manifest.last,
            "since": manifest.since,
            "time_type": str(read_time_type(manifest.plan, where)),
            "inputs": _describe_inputs(manifest, where),
            "operators": {},
            "verdicts": {},
            "outputs": {n: format_node(manifest.plan, outputs.read_text(n), where) for n in outputs.list_field_names()},
            "folder": _describe_output_folder(manifest),
            "receipts": [_describe_receipt(each) for each in manifest.receipts],
            "partitions": manifest.partitions,
            "stages": max(len(manifest.inventories) // manifest.partitions, 1),
            "parts": [],
            "sources": {name: _describe_source(each, name, manifest) for name, each in manifest.sources.items()},
            "sinks": _describe_sinks(store, manifest),
            "fed": None if manifest.feed is None else to_builtins(manifest.feed),
        }
        waiting = Backlog(store).list_files(manifest.backlog)
        named = {blob.name: blob.length for blob in (*manifest.output_files(), *manifest.inventories, *waiting)}
        for place, part in enumerate(manifest.inventories):
            stored = StoredInventory.read(store, part)
            files = {blob.name: blob.length for blob in stored.text.files}
            stage, number = divmod(place, manifest.partitions)
            within = {"stage": stage, "partition": number, "files": len(files), "bytes": sum(files.values())}
            out["parts"].append(within | _add_inventory_figures(out, stored.of, manifest, where))
            named |= files
        versions = [_describe_version(store, number) for number in reversed(store.list_manifests())]
        return out | {"files": len(named), "bytes": sum(named.values()), "versions": versions}


def _describe_source(of: AttachedSource, name: str, manifest: Manifest) -> dict[str, Any]:
    """Describe an attached source, and the columns that runs added to each input."""
    added = {each: manifest.added[each] for each in (of.left_out or (name,)) if each in manifest.added}
    out: dict[str, Any] = to_builtins(of)
    return out | {"added": to_builtins(added)}


def _describe_sinks(store: Store, manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Describe the attached sink of each output, with the number of waiting epochs and the bytes of their updates."""
    kept = [*Backlog(store).list_receipts(manifest.backlog), *manifest.receipts] if manifest.sinks else []
    return {
        name: to_builtins(sink)
        | {"columns": list(sink.columns)}
        | {
            "waiting": manifest.epoch - sink.epoch,
            "waiting_bytes": sum(receipt.count_output_bytes(name) for receipt in kept if receipt.epoch > sink.epoch),
        }
        for name, sink in manifest.sinks.items()
    }


def format_timestamp(milliseconds: int) -> str:
    """Format a Unix time in milliseconds as ISO text, in UTC."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"


def _describe_inputs(manifest: Manifest, where: str) -> dict[str, dict[str, Any]]:
    """Describe each input: its columns, the fields of its spec that differ from the defaults, and its calls."""
    return {
        name: {
            "columns": list_columns(schema),
            "spec": json.loads(spec.to_json()),
            "fed": _describe_feed_calls(manifest.fed.get(name, FeedHistory())),
        }
        for name, (schema, spec) in read_input_specs(manifest.plan, where).items()
    }


def _describe_feed_calls(fed: FeedHistory) -> dict[str, Any]:
    before = {"until": fed.until, "events": fed.events, "full": fed.full, "restated": fed.restated}
    runs = [
        {
            "first": run.first,
            "last": run.last,
            "calls": run.calls,
            "way": run.way.kind,
            "scope": run.way.scope,
            "order": run.way.order is not None,
        }
        for run in fed.runs
    ]
    return {"runs": runs, "before": before if fed.forgotten_call_count else None}


def _describe_output_folder(manifest: Manifest) -> dict[str, Any] | None:
    of = {name: build_folder_name(name) for name in manifest.plan["outputs"]}
    return None if manifest.folder is None else {"path": manifest.folder, "of": of}


def _add_inventory_figures(out: dict[str, Any], inventory: Inventory, manifest: Manifest, where: str) -> dict[str, int]:
    """Add the figures of an inventory to ``out``, and return its keys and pending events."""
    keys = pending = 0
    for name, each in inventory.inputs.items():
        figures = _describe_arrangement(each.rows) | {
            "arrived": each.arrived,
            "pending": sum(run.rows - run.begin for run in each.runs),
            "pending_files": len(each.runs),
            "pending_bytes": sum(run.file.length for run in each.runs),
        }
        add_to_counts(out["inputs"].setdefault(name, {}), figures)
        keys, pending = keys + figures["keys"], pending + figures["pending"]
    for name, operator in inventory.operators.items():
        for arranged in operator.arrangements:
            figures = _describe_arrangement(arranged)
            add_to_counts(out["operators"].setdefault(format_node(manifest.plan, name, where), {}), figures)
            keys += figures["keys"]
    add_to_counts(out["verdicts"], {name: n for name, n in inventory.totals.items() if name in NAMES})
    return {"keys": keys, "pending": pending}


def _describe_arrangement(given: ArrangementRecord) -> dict[str, int]:
    """Compute the figures of one arrangement."""
    merges = sum(not isinstance(item, RunRecord) for item in given.items)
    files = {blob.name: blob.length for batch in given.batches for blob in (batch.file, batch.bloom) if blob}
    return {
        "keys": given.keys,
        "tombstones": given.tombstones - given.lapsed,
        "versions": sum(batch.rows for batch in given.batches) - sum(run.begin for run in given.runs),
        "runs": sum(bool(run.batches) for run in given.runs),
        "merges": merges,
        "files": len(files),
        "bytes": sum(files.values()),
    }


def _describe_receipt(receipt: Epoch) -> dict[str, Any]:
    calls = [
        {
            "call": call.kind,
            "time": call.time,
            "frontier": call.frontier,
            "digest": call.digest,
            "origin": call.origin,
            "verdicts": dict(call.counts),
            "figures": dict(call.figures),
            "outputs": {
                name: {
                    "rows": each.rows,
                    "files": [blob.name for blob in each.blobs],
                    "bytes": sum(blob.length for blob in each.blobs),
                }
                for name, each in call.outputs.items()
            },
        }
        for call in receipt.calls
    ]
    return {"epoch": receipt.epoch, "batch": receipt.batch, "calls": calls}


def _describe_version(store: Store, number: int) -> dict[str, Any]:
    """Describe a kept manifest. If the manifest cannot be read, describe the error."""
    try:
        manifest = load_manifest(store, number)
    except DdflowError as error:
        return {"manifest": number, "error": str(error)}
    return {
        "manifest": number,
        "epoch": manifest.epoch,
        "written": format_timestamp(manifest.written),
        "age": round(max(0.0, time.time() - manifest.written / 1000), 3),
        "note": manifest.note,
    }

"""What the newest version of a state needs on disk, without what older versions keep there beside it.

Invariant: bytes of files, each once: of ddflow's state those that the newest manifest names, of Spark's RocksDB store
those that the newest checkpoint of every partition names, of folders of Parquet the newest. All of them keep older
versions for a while (ddflow a minute, Spark a hundred batches), and a bench is over before anything is swept, so what
lies there tells of times and not of size. Nothing here is deleted.

>>> import tempfile, zipfile
>>> with tempfile.TemporaryDirectory() as folder:
...     for version, sizes in ((9, [5, 6]), (10, [6, 700])):
...         with zipfile.ZipFile(os.path.join(folder, f"{version}.zip"), "w") as file:
...             file.writestr("metadata", "v1\\n" + json.dumps({"sstFiles": [{"sizeBytes": size} for size in sizes]}))
...     rocksdb(folder) - os.path.getsize(os.path.join(folder, "10.zip"))
706
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path


def newest(contender: str, folder: str) -> int:
    """Bytes that the newest version of a contender's state takes; 0 where it has none."""
    if contender == "ddflow":
        return ddflow(folder)
    return parquet(folder) if contender == "join" else rocksdb(folder)


def ddflow(folder: str) -> int:
    """Of a state whose outputs are elsewhere."""
    from ddflow.storage.garbage import blobs_of, inside
    from ddflow.storage.manifest import newest as newest_manifest
    from ddflow.storage.opening import open_store

    store = open_store(folder, create=False, readonly=True)
    try:
        manifest = newest_manifest(store)
        files = blobs_of(store, manifest) if manifest is not None else ()
        return sum({blob.name: blob.length for blob in files if inside(blob)}.values())
    finally:
        store.close()


def rocksdb(folder: str) -> int:
    """Of a checkpoint's state folder: for each partition the last archive, and the tables that it lists."""
    last: dict[Path, Path] = {}
    for path in sorted(Path(folder).rglob("*.zip"), key=lambda path: int(path.stem)):
        last[path.parent] = path
    total = 0
    for path in last.values():
        with zipfile.ZipFile(path) as archive:
            _, listed = archive.read("metadata").decode().split("\n", 1)
        total += path.stat().st_size + sum(table["sizeBytes"] for table in json.loads(listed)["sstFiles"])
    return total


def parquet(folder: str) -> int:
    """Of folders named by number, each a whole version: the last one's files."""
    numbers = [int(name) for name in os.listdir(folder)] if os.path.isdir(folder) else []
    found = Path(folder, str(max(numbers))).glob("*.parquet") if numbers else ()
    return sum(path.stat().st_size for path in found)

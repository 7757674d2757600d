"""Test the names that garbage collection uses: an inventory's text and its record name the same files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import Struct
from msgspec.structs import astuple
from test_golden import GOLDEN

import ddflow as dd
from ddflow.engine.checkpoint import StoredInventory
from ddflow.storage.fields import encode_record
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.inventory_text import find_file_names, find_files, read_inventory_text, rename_files
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob, Store

FILE = '["00ff00ff00ff00ff-9.arrow",4,"AAAAAAAAAAAAAAAAAAAAAA=="]'
ODD = [FILE, "00ff00ff00ff00ff-9.arrow", f'x",{FILE},"', "\\" + FILE, 'tab\t"quote"']


def blobs(value: Any) -> Iterator[Blob]:
    """All files in a record, field by field."""
    if isinstance(value, Blob):
        yield value
    elif isinstance(value, Struct):
        yield from blobs(astuple(value))
    elif isinstance(value, dict):
        yield from blobs(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from blobs(each)


def agrees(store: Store) -> int:
    """How many files the newest version's inventories name, by either way."""
    manifest = load_newest_manifest(store)
    assert manifest is not None
    total = 0
    for part in manifest.inventories:
        data = read_inventory_text(store, part).data
        expected = list(blobs(StoredInventory.read(store, part).of))
        assert sorted(find_files(data)) == sorted(expected)
        assert find_file_names(data) == {blob.name for blob in expected}
        other = {blob.name: Blob(f"ff00ff00ff00ff00-{i}.arrow", i, bytes(16)) for i, blob in enumerate(expected)}
        assert sorted(find_files(rename_files(data, other))) == sorted(other.values())
        total += len(expected)
    return total


@pytest.mark.parametrize("kind", sorted(path.stem for path in GOLDEN.glob("format-*/*.zip")))
def test_the_text_and_the_record_of_a_golden_inventory_name_the_same_files(kind: str, tmp_path: Path) -> None:
    [form] = GOLDEN.glob("format-*")
    shutil.unpack_archive(form / f"{kind}.zip", tmp_path / "state")
    store = LocalStore(str(tmp_path / "state"), create=False, readonly=True)
    try:
        assert agrees(store) > 0
    finally:
        store.close()


@pytest.mark.parametrize("name", ODD)
def test_what_a_user_wrote_is_no_file(name: str) -> None:
    flow, store = dd.Flow(), MemoryStore()
    rows = flow.upserts(name, {"id": pa.int64(), "text": pa.string()}, dd.Upsert(key="id"))
    flow.output("out", rows.filter("text is not null").count(by="text"))
    with flow.open(store, secret=dd.Secret(1, 2)) as engine:
        engine.step({name: pa.table({"id": [1, 2], "text": ODD[:2]})}, time=1)
    manifest = load_newest_manifest(store)
    assert manifest is not None
    data = b"".join(store.map_blob(part).to_pybytes() for part in manifest.inventories)
    assert encode_record(name) in data
    expected = {blob.name for part in manifest.inventories for blob in blobs(StoredInventory.read(store, part).of)}
    assert {blob.name for blob in find_files(data)} == expected
    # A name alone may be taken for a file's, which keeps one too many and never one too few.
    assert find_file_names(data) >= expected

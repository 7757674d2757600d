"""Files as data sets."""

from collections.abc import Iterator
from typing import Any

from pyarrow import NativeFile, Schema

class Fragment:
    path: str
    partition_expression: Any
    def open(self) -> NativeFile: ...

class Dataset:
    schema: Schema
    def count_rows(self) -> int: ...
    def get_fragments(self) -> Iterator[Fragment]: ...

class FileSystemDataset(Dataset): ...

def dataset(source: str, *, format: str) -> Dataset: ...
def get_partition_keys(expression: Any) -> dict[str, Any]: ...

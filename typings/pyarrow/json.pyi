"""JSON lines files."""

from typing import Any

from pyarrow import Schema, Table
from pyarrow.ipc import RecordBatchReader

class ReadOptions:
    def __init__(self, use_threads: bool = True, block_size: int | None = None) -> None: ...

class ParseOptions:
    def __init__(self, explicit_schema: Schema | None = None, *, unexpected_field_behavior: str = "infer") -> None: ...

def open_json(input_file: Any, read_options: ReadOptions, parse_options: ParseOptions) -> RecordBatchReader: ...
def read_json(input_file: Any, read_options: ReadOptions, parse_options: ParseOptions) -> Table: ...

"""CSV files."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyarrow import DataType, RecordBatch, Schema, Table
from pyarrow.ipc import RecordBatchReader

class ReadOptions:
    def __init__(self, *, use_threads: bool = True, block_size: int | None = None) -> None: ...

class ParseOptions:
    def __init__(self, delimiter: str | None = None, *, newlines_in_values: bool = False) -> None: ...

class WriteOptions:
    def __init__(self, *, include_header: bool = True, delimiter: str = ",", quoting_style: str = "needed") -> None: ...

class ConvertOptions:
    def __init__(
        self,
        *,
        column_types: Schema | Mapping[str, DataType] | None = None,
        null_values: Sequence[str] | None = None,
        strings_can_be_null: bool = False,
        quoted_strings_can_be_null: bool = True,
    ) -> None: ...

class CSVWriter:
    def __init__(self, sink: Any, schema: Schema, *, write_options: WriteOptions | None = None) -> None: ...
    def close(self) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...

def open_csv(
    input_file: Any, read_options: ReadOptions, parse_options: ParseOptions, convert_options: ConvertOptions
) -> RecordBatchReader: ...
def write_csv(data: Table | RecordBatch, output_file: Any, write_options: WriteOptions | None = None) -> None: ...

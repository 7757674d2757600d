"""Read and write Parquet, Arrow, CSV, TSV and JSON files, one batch at a time.

`open_files` reads many files as one source with one schema. `open_output` writes one file, which exists only when it is
complete. The extension of a name selects the format. Memory holds a few batches at a time.

>>> import tempfile, pyarrow as pa
>>> with tempfile.TemporaryDirectory() as folder:
...     with open_output(f"{folder}/a.parquet", pa.schema({"id": pa.int64()})) as out:
...         out.write(pa.table({"id": [1, 2]}))
...     given = open_files([f"{folder}/a.parquet"])
...     given.rows, [batch.to_pylist() for batch, position in given.batches() if batch.num_rows]
(2, [[{'id': 1}, {'id': 2}]])
"""

from ddflow.connectors.files.source import AS_USUAL, FileOptions, FilePosition, MultiFileReader, open_files
from ddflow.connectors.files.writers import FileOutput, open_output
from ddflow.errors import UnwritableOutput

__all__ = [
    "AS_USUAL",
    "FileOptions",
    "FileOutput",
    "FilePosition",
    "MultiFileReader",
    "UnwritableOutput",
    "open_files",
    "open_output",
]

"""Files in and out: Parquet, Arrow, CSV, TSV and JSON, by extension, streamed.

Invariant: a source has one schema, of which a batch has the columns that its file has; an output is whole or not there;
memory is bounded by batches, not by files. Nothing of upserts is known here.

In reading order: `file_path` (a path with options), `kinds` (formats, by the name of a file), `places` (where bytes
are), `guess` and `spelling` (types of text), `reader` (any file) with `csv_reader`, `json_reader` and
`columnar_reader`, `source` (many files as one), and `writers`.

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

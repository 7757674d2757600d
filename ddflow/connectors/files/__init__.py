"""Files in and out: Parquet, Arrow, CSV, TSV and JSON, by extension, streamed.

Invariant: a source has one schema, of which a batch has the columns that its file has; an output is whole or not there;
memory is bounded by batches, not by files.  The rooms: `kinds` (what names say), `places` (where bytes are), `types`
(types as text), `reading` and its readers, of which those of text share `read_text`; `guess`, `spelling` and
`forms` (types of text), `structure` (JSON's brackets), `wire` (types that text cannot hold), `source`; `writers`,
`json_text`, `output`.
Nothing of upserts is known here.

>>> import tempfile, pyarrow as pa
>>> with tempfile.TemporaryDirectory() as folder:
...     with open_output(f"{folder}/a.parquet", pa.schema({"id": pa.int64()})) as out:
...         out.write(pa.table({"id": [1, 2]}))
...     given = open_files([f"{folder}/a.parquet"])
...     given.rows, [batch.to_pylist() for batch, position in given.batches() if batch.num_rows]
(2, [[{'id': 1}, {'id': 2}]])
"""

from ddflow.connectors.files.source import AS_USUAL, FileOptions, FilePosition, FilesSource, open_files
from ddflow.connectors.files.writers import FileOutput, open_output
from ddflow.errors import UnwritableOutput

__all__ = [
    "AS_USUAL",
    "FileOptions",
    "FileOutput",
    "FilePosition",
    "FilesSource",
    "UnwritableOutput",
    "open_files",
    "open_output",
]

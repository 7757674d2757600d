"""CSV files, parsed block by block.

Invariant: one schema for all rows of all files; a type that nobody declared holds values only as it is spelled
(``spelling``), and one that does not fit is an error naming its file, row and column.  An empty field is null, ``""``
is the empty text.  Arrow tells the row only when it parses on one thread, so a failure is looked for once more that
way; and a quote that is never closed swallows the rest of a file as one value, which Arrow lets pass.  Rows are counted
as a spreadsheet shows them: the header is row 1.  Comma, double quotes, UTF-8 (with or without a mark); other dialects
are not read.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (where := Path(folder) / "a.csv").write_text("id,zip\\n1,08001\\n2,\\n")
...     file, schema = CsvFile(where), pa.schema({"id": pa.int64(), "zip": pa.string()})
...     print(file.head({})["zip"], next(file.batches(schema)).to_pylist())
frozenset({DataType(string)}) [{'id': 1, 'zip': '08001'}, {'id': 2, 'zip': None}]
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pc

from ddflow.connectors.files.guess import ANY, SAMPLE, Possible, possible
from ddflow.connectors.files.kinds import CSV
from ddflow.connectors.files.reading import File, Types, check_width, described, misspelled, reading, unwrapped
from ddflow.connectors.files.spelling import Misspelled, is_spelled, values
from ddflow.connectors.files.wire import holds, restored, wire
from ddflow.errors import DdflowError, SchemaMismatch, SpecError, UnreadableInput

Seen = Callable[[pa.Buffer], pa.Buffer]
_VALUE = re.compile(r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?(?P<what>.*)")
_TOKENS = re.compile(rb'[",\r\n]|[^",\r\n]+')
_STATES: Final[dict[str, dict[bytes, str]]] = {
    "start": {b'"': "quoted", b",": "start", b"\r": "start", b"\n": "start", b"x": "plain"},
    "plain": {b",": "start", b"\r": "start", b"\n": "start", b"x": "plain"},
    "quoted": {b'"': "closed", b"x": "quoted"},
    "closed": {b'"': "quoted", b",": "start", b"\r": "start", b"\n": "start", b"x": "plain"},
}
"""Where in a field the next byte stands, by where the last one stood: as Arrow reads CSV."""
_SHAPE = re.compile(r"CSV parse error: (?:Row #(?P<row>\d+): )?(?P<what>.*)")


class CsvFile(File):
    """A CSV file, perhaps in gzip."""

    def head(self, types: Types) -> Mapping[str, Possible]:
        """Of the first block; not read where all types are given."""
        names = self.columns()
        for name in names:
            if name in types and not holds(types[name], CSV):
                raise SpecError(
                    f"type {types[name]} for {name!r}",
                    f"a field of {self.path} cannot hold it",
                    "use Parquet, Arrow or JSON lines for nested values",
                )
        if types.keys() >= names.keys():
            return super().head(types)
        with self._opened(dict.fromkeys(names, pa.string())) as reader:
            sample = next(iter(reader), None)
        told = {} if sample is None else {n: sample.column(n) for n in names if n not in types}
        return {name: possible(told[name]) if name in told else ANY for name in names}

    def columns(self) -> Mapping[str, None]:
        """The names in the header."""
        return self._names

    @cached_property
    def _names(self) -> dict[str, None]:
        with self._opened({}) as reader:
            names = list(reader.schema.names)
        check_width(self.path, len(names))
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise UnreadableInput(str(self.path), f"the columns {twice} occur more than once", "name each column once")
        return dict.fromkeys(names)

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Block by block."""
        meant = {name: schema.field(name).type for name in self.columns()}
        spelled = {name for name, kind in meant.items() if name not in converted and is_spelled(kind)}
        parsed = {name: pa.string() if name in spelled else wire(kind, CSV) for name, kind in meant.items()}
        quotes = row = 0

        def counted(chunk: pa.Buffer) -> pa.Buffer:
            nonlocal quotes
            quotes += chunk.to_pybytes().count(b'"')
            return chunk

        try:
            with self._opened(parsed, threads=True, seen=counted) as reader:
                for batch in reader:
                    yield self._typed(batch, meant, spelled, row)
                    row += batch.num_rows
            if quotes % 2:
                self._check_quotes()
        except DdflowError:
            # On one thread Arrow also tells the row.
            row = 0
            with self._opened(parsed) as reader:
                for batch in reader:
                    self._typed(batch, meant, spelled, row)
                    row += batch.num_rows
            raise

    def _typed(self, batch: pa.RecordBatch, meant: Types, spelled: Collection[str], before: int) -> pa.RecordBatch:
        """The columns as their types: ``spelled`` ones to how values are spelled.  ``before``: rows of the file."""
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                columns.append(values(column, meant[name]) if name in spelled else restored(column, meant[name]))
            except Misspelled as error:
                where = f"{self.path}, {_row(before + error.row + 2)}, column {name!r}"
                raise misspelled(where, name, column[error.row].as_py(), meant[name]) from None
            except (pa.ArrowException, ValueError) as error:
                raise self._refused(name, None, described(error), meant[name]) from None
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    @contextmanager
    def _opened(self, types: Types, threads: bool = False, seen: Seen | None = None) -> Iterator[Any]:
        """A reader of batches with columns of the given types, whose errors are worded; ``seen`` sees every byte."""
        options = (
            pc.ReadOptions(use_threads=threads, block_size=SAMPLE),
            pc.ParseOptions(newlines_in_values=True),
            pc.ConvertOptions(
                column_types=dict(types), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        with reading(self.path, self.kind.name):
            plain = unwrapped(self.path, self.kind)  # not closed here, see there
            file = plain if seen is None else pa.TransformInputStream(plain, seen)
            try:
                with pc.open_csv(file, *options) as reader:
                    yield reader
            except pa.ArrowInvalid as error:
                raise self._worded(described(error), types) from None

    def _worded(self, message: str, types: Types) -> DdflowError:
        if (match := _VALUE.fullmatch(message)) is not None:
            name = list(types)[int(match["column"])]
            return self._refused(name, match["row"], match["what"], types[name])
        if (match := _SHAPE.fullmatch(message)) is not None:
            where = f"{_row(match['row'])}: " if match["row"] else ""
            return UnreadableInput(str(self.path), where + match["what"], "mend the row: is it a whole CSV file?")
        if "straddl" in message:
            message = f"a row is longer than {SAMPLE:,} bytes; is a quote not closed?"
        return UnreadableInput(str(self.path), message, "is it a whole CSV file?")

    def _refused(self, name: str, row: str | None, what: str, kind: pa.DataType) -> DdflowError:
        where = f"{_row(row)}, column {name!r}" if row else f"column {name!r}"
        if "UTF8" in what:
            return UnreadableInput(f"{self.path}, {where}", "it is not UTF-8", "write the file in UTF-8")
        value = re.search(r"invalid value '(.*)'", what)
        found = f"{value[1]!r} is no {kind}" if value else what.removeprefix(f"CSV conversion error to {kind}: ")
        return SchemaMismatch(
            f"{self.path}, {where}", found, f"mend it, or declare another type: --types {name}=string"
        )

    def _check_quotes(self) -> None:
        """Refuse a file that ends within quotes; looked at closely only where quotes do not pair up."""
        line, opened, state = 1, 0, "start"
        with unwrapped(self.path, self.kind) as file:
            while chunk := file.read(SAMPLE):
                for token in _TOKENS.finditer(chunk):
                    mark = token[0] if token[0] in b'",\r\n' else b"x"
                    line += mark == b"\n"
                    opened = line if state == "start" and mark == b'"' else opened
                    state = _STATES[state].get(mark, _STATES[state][b"x"])
        if state == "quoted":
            raise UnreadableInput(
                f"{self.path}, line {opened:,}",
                "a quote is opened there that is never closed",
                "mend it: is it a whole CSV file?",
            )


def _row(number: str | int) -> str:
    return f"row {int(number):,}"

"""JSON lines files, parsed block by block: one object a line.

Invariant: one schema for all rows of all files; a line that does not fit it is an error naming its file, line and
column.  A member that is missing is null; one that the schema has not is an error, for what is left out in silence is
lost.  Why that is not trivial: Arrow's parser says for some failures which row of a block it was, for others nothing,
and lets text pass that is not UTF-8; so a failure is looked for once more, line by line.  Numbers are parsed as
numbers, quoted dates and times guessed from a sample (``guess``); inside lists and objects they stay text.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (where := Path(folder) / "a.jsonl").write_text('{"id": 1, "on": "2024-01-31"}\\n{"id": 2}\\n')
...     file = JsonFile(where)
...     print(file.schema({}).types, next(file.batches(file.schema({}))).to_pylist()[1])
[DataType(int64), DataType(date32[day])] {'id': 2, 'on': None}
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pat

from ddflow.errors import DdflowError, SchemaMismatch, SpecError, UnreadableInput
from ddflow.files.guess import SAMPLE, guess_moment, settled, whole_type
from ddflow.files.kinds import JSON
from ddflow.files.reading import File, Types, described, reading, source
from ddflow.files.wire import holds, restored, wire
from ddflow.schema import did_you_mean

_WIDE = pa.decimal256(76, 0)


class JsonFile(File):
    """A JSON lines file, perhaps in gzip."""

    def schema(self, types: Types) -> pa.Schema:
        """Declared types, and what the first block's values are.  O(`SAMPLE`) a column of doubles, at most."""
        for name, kind in types.items():
            if not holds(kind, JSON):
                raise SpecError(f"type {kind} for {name!r}", f"JSON in {self.path} cannot hold it", "declare another")
        declared = {name: wire(kind, JSON) for name, kind in types.items()}
        parsed = {f.name: settled(f.type) for f in self._sample(declared, "infer").schema} | declared
        first = self._first()
        parsed = {
            name: parsed[name]
            for name in sorted(parsed, key=lambda name: first.get(name, len(first) + (name in types)))
        }
        texts = self._sample(parsed, "ignore")
        guessed = {}
        for name, kind in parsed.items():
            guessed[name] = types.get(name, kind)
            if name not in types and pat.is_string(kind):
                guessed[name] = guess_moment(texts.column(name))
            elif name not in types and pat.is_floating(kind):
                guessed[name] = self._number(name)
        return pa.schema(list(guessed.items()))

    def columns(self) -> None:
        """Only the rows tell."""

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Block by block."""
        meant = {field.name: field.type for field in schema}
        parsed = {name: wire(kind, JSON) for name, kind in meant.items()}
        try:
            with self._opened(parsed, "error") as reader:
                for batch in reader:
                    batch.validate(full=True)
                    with reading(self.path, self.kind.name):
                        typed = _typed(batch, meant)
                    yield typed
        except DdflowError:
            self._locate(parsed, meant)
            raise

    def _sample(self, types: Types, unexpected: str) -> pa.RecordBatch:
        """The rows of the first block."""
        try:
            with self._opened(types, unexpected) as reader:
                return next(iter(reader))
        except DdflowError:
            self._locate(types, types, unexpected)
            raise

    def _first(self) -> dict[str, int]:
        """The place of each member of the first row: Arrow puts declared columns in front."""
        with reading(self.path, self.kind.name), self._lines() as lines:
            for line in lines:
                if line.strip():
                    with suppress(ValueError):
                        return {name: place for place, name in enumerate(json.loads(line))}
                    break
        return {}

    def _lines(self) -> IO[bytes]:
        return cast("IO[bytes]", gzip.open(self.path) if self.kind.gzipped else open(self.path, "rb"))

    def _number(self, name: str) -> pa.DataType:
        """A column that Arrow takes for doubles: one of whole numbers that are too large for int64, or truly so."""
        try:
            with self._opened({name: _WIDE}, "ignore") as reader:
                numbers = next(iter(reader)).column(name)
        except UnreadableInput:
            return pa.float64()
        kind = whole_type(numbers)
        return pa.float64() if kind == pa.int64() else kind

    @contextmanager
    def _opened(self, types: Types, unexpected: str) -> Iterator[Any]:
        parse = pj.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior=unexpected)
        with reading(self.path, self.kind.name):
            file = source(self.path, self.kind)  # not closed here, see there
            try:
                yield pj.open_json(file, pj.ReadOptions(block_size=SAMPLE), parse)
            except pa.ArrowInvalid as error:
                found = described(error)
                if "straddl" in found:
                    found = f"a line is longer than {SAMPLE:,} bytes"
                raise UnreadableInput(
                    str(self.path), found, "is it a whole JSON lines file, an object a line?"
                ) from None

    def _locate(self, parsed: Types, meant: Types, unexpected: str = "error") -> None:
        """Raise the error of the first line that does not parse alone.  O(file)."""
        ways = parsed, meant, unexpected
        with reading(self.path, self.kind.name), self._lines() as lines:
            number = 0
            while group := list(islice(lines, 4096)):
                if _failure(b"".join(group), *ways):
                    for i, line in enumerate(group):
                        if line.strip() and (failure := _failure(line, *ways)):
                            raise self._worded(line, number + i + 1, failure, *ways)
                number += len(group)

    def _worded(
        self, line: bytes, number: int, failure: str, parsed: Types, meant: Types, unexpected: str
    ) -> DdflowError:
        where = f"{self.path}, line {number:,}"
        remedy = "mend it: is it a whole JSON lines file, an object a line?"
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            return UnreadableInput(where, f"it is not UTF-8 ({error.reason})", remedy)
        except ValueError as error:
            return UnreadableInput(where, f"it is no JSON ({error})", remedy)
        if not isinstance(row, dict):
            return UnreadableInput(where, f"it is a {type(row).__name__}, not an object", remedy)
        for name, value in row.items():
            if name not in parsed and unexpected == "error":
                return SchemaMismatch(where, f"there is a column {name!r}, which the first rows of the run have not",
                                      f"declare it (--types {name}=type); {did_you_mean(name, parsed)}")  # fmt: skip
            alone = json.dumps({name: value}).encode()
            if name in parsed and _failure(alone, {name: parsed[name]}, {name: meant[name]}, unexpected):
                shown = json.dumps(value, ensure_ascii=False)
                shown = shown if len(shown) < 40 else shown[:40] + "..."
                return SchemaMismatch(f"{where}, column {name!r}", f"{shown} is no {meant[name]}",
                                      f"mend it, or declare another type: --types {name}=type")  # fmt: skip
        return UnreadableInput(where, failure, remedy)


def _typed(batch: pa.RecordBatch, meant: Types) -> pa.RecordBatch:
    columns = [restored(column, meant[name]) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _failure(text: bytes, parsed: Types, meant: Types, unexpected: str) -> str | None:
    """Why some lines do not parse, or None."""
    parse = pj.ParseOptions(explicit_schema=pa.schema(list(parsed.items())), unexpected_field_behavior=unexpected)
    options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
    try:
        table = pj.read_json(io.BytesIO(text), options, parse)
        table.validate(full=True)
        for batch in table.to_batches():
            _typed(batch, {**dict(zip(batch.schema.names, batch.schema.types, strict=True)), **meant})
    except (pa.ArrowException, ValueError) as error:
        return described(error)
    return None

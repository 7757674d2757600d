"""JSON lines files, parsed block by block: one object a line.

Invariant: one schema for all rows of all files; a line that does not fit it is an error naming its file, line and
column. A member that is missing is null; one that the schema has not is an error, for what is left out in silence is
lost. Arrow's parser says for some failures which row of a block it was, for others nothing, and lets text pass that is
not UTF-8; so a failure is looked for once more, line by line. Numbers are parsed as numbers, quoted dates and times
guessed from heads (``guess``); inside lists and objects they stay text. No parser sees a line that ``lines`` refuses.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (where := Path(folder) / "a.jsonl").write_text('{"id": 1, "on": "2024-01-31"}\\n{"id": 2}\\n')
...     file, schema = JsonFile(where), pa.schema({"id": pa.int64(), "on": pa.date32()})
...     print(list(file.head({})), next(file.batches(schema)).to_pylist()[1])
['id', 'on'] {'id': 2, 'on': None}
"""

import gzip
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pat

from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import is_text
from ddflow.connectors.files.guess import ANY, MOMENTS, NUMBERS, SAMPLE, Possible, possible, settled
from ddflow.connectors.files.kinds import JSON
from ddflow.connectors.files.lines import Bounds
from ddflow.connectors.files.reading import File, Types, check_width, described, misspelled, reading, unwrapped
from ddflow.connectors.files.spelling import EXACT, fits
from ddflow.connectors.files.wire import holds, restored, wire
from ddflow.errors import DdflowError, SchemaMismatch, SpecError, UnreadableInput

_ODD: Final = re.compile(rb'[0-9]{16}|"(?:[ +]|-?0[0-9]|[-.0-9]+[eE])')
"""What a line holds that may be a number of too many digits, or quoted and no number."""
_WIDE: Final = pa.decimal256(76, 0)
_WHOLE: Final = (pa.int64(), pa.uint64(), pa.decimal128(38, 0))


class JsonFile(File):
    """A JSON lines file, perhaps in gzip."""

    def head(self, types: Types) -> Mapping[str, Possible]:
        """Of the first block: its members, as the first row has them, then others of ``types``."""
        for name, kind in types.items():
            if not holds(kind, JSON):
                raise SpecError(f"type {kind} for {name!r}", f"JSON in {self.path} cannot hold it", "declare another")
        given = {name: wire(kind, JSON) for name, kind in types.items()}
        inferred = {field.name: field.type for field in self._sample(given, "infer").schema}
        check_width(self.path, len(inferred))
        first = self._first()
        names = sorted(inferred, key=lambda name: first.get(name, len(first) + (name in types)))
        rows = self._sample({name: settled(kind) for name, kind in inferred.items()} | given, "ignore")
        return {name: ANY if name in types else self._possible(name, inferred[name], rows) for name in names}

    def _possible(self, name: str, inferred: pa.DataType, rows: pa.RecordBatch) -> Possible:
        """What a column could be that Arrow takes for a type."""
        column = rows.column(name)
        if pat.is_string(column.type):
            return possible(column, (*MOMENTS, pa.string()))
        if pat.is_integer(inferred):
            return possible(column.cast(pa.string())) & NUMBERS
        if pat.is_floating(inferred):
            return self._number(name)
        return frozenset([settled(inferred, null=pa.null())])

    def columns(self) -> None:
        """Only the rows tell."""

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Block by block."""
        meant = {field.name: field.type for field in schema}
        parsed = {name: wire(kind, JSON) for name, kind in meant.items()}
        spelled = {name: kind for name, kind in meant.items() if name not in converted and not is_text(kind)}
        exact = {name: kind for name, kind in spelled.items() if pat.is_decimal(kind)}
        try:
            with self._opened(parsed, "error") as reader:
                for batch in reader:
                    batch.validate(full=True)
                    with reading(self.path, self.kind.name):
                        typed = _typed(batch, meant)
                    exact |= {name: kind for name, kind in spelled.items() if _is_large(typed.column(name))}
                    yield typed
        except DdflowError:
            self._locate(parsed, meant)
            raise
        self._check_spelled(exact)

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
        with self._lines() as lines:
            for _, line in lines:
                if line.strip():
                    with suppress(ValueError):
                        return {name: place for place, name in enumerate(json.loads(line))}
                    break
        return {}

    @contextmanager
    def _lines(self) -> Iterator[Iterator[tuple[int, bytes]]]:
        """The file's lines and their numbers; of one that is too long, its beginning."""
        with reading(self.path, self.kind.name), self._bytes() as file:
            yield enumerate(iter(lambda: file.readline(SAMPLE + 2), b""), 1)

    def _bytes(self) -> IO[bytes]:
        return cast("IO[bytes]", gzip.open(self.path) if self.kind.gzipped else open(self.path, "rb"))

    def _number(self, name: str) -> Possible:
        """A column that Arrow takes for doubles: one of whole numbers that are too large for int64, or truly so."""
        found = frozenset([pa.float64()])
        try:
            with self._opened({name: _WIDE}, "ignore") as reader:
                numbers = next(iter(reader)).column(name)
        except UnreadableInput:
            return found
        whole = possible(numbers.cast(pa.string()), _WHOLE)
        return found if pa.int64() in whole else whole

    def _check_spelled(self, columns: Types) -> None:
        """Refuse whole numbers that doubles round, and quoted decimals that are written as none.  O(file)."""
        with self._lines() as lines:
            for number, line in lines if columns else ():
                row = json.loads(line, parse_int=_Whole) if _ODD.search(line) else {}
                for name, kind in columns.items():
                    text = row.get(name)
                    asked = type(text) is (_Whole if pat.is_floating(kind) else str)
                    if asked and not fits(pa.array([str(text)]), kind):
                        raise misspelled(f"{self.path}, line {number:,}, column {name!r}", name, str(text), kind)

    @contextmanager
    def _opened(self, types: Types, unexpected: str) -> Iterator[pa.RecordBatchReader]:
        parse = pj.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior=unexpected)
        with reading(self.path, self.kind.name):
            plain = unwrapped(self.path, self.kind)  # not closed here, see there
            try:
                file = pa.TransformInputStream(plain, Bounds(self.path))
                yield pj.open_json(file, pj.ReadOptions(block_size=SAMPLE), parse)
            except pa.ArrowInvalid as error:
                raise UnreadableInput(
                    str(self.path), described(error), "is it a whole JSON lines file, an object a line?"
                ) from None

    def _locate(self, parsed: Types, meant: Types, unexpected: str = "error") -> None:
        """Raise the error of the first line that does not parse alone.  O(file)."""
        ways = parsed, meant, unexpected
        with self._lines() as lines:
            while group := list(_group(lines)):
                whole = b"".join(line for _, line in group)
                if _within(self.path, 0, whole) is None and not _failure(whole, *ways):
                    continue
                for number, line in group:
                    if (error := _within(self.path, number - 1, line)) is not None:
                        raise error
                    if line.strip() and (failure := _failure(line, *ways)):
                        raise self._worded(line, number, failure, *ways)

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
                return SchemaMismatch(
                    where,
                    f"there is a column {name!r}, which the first rows of the run have not",
                    f"declare it (--types {name}=type); {did_you_mean(name, parsed)}",
                )
            alone = json.dumps({name: value}).encode()
            if name in parsed and _failure(alone, {name: parsed[name]}, {name: meant[name]}, unexpected):
                shown = json.dumps(value, ensure_ascii=False)
                shown = shown if len(shown) < 40 else shown[:40] + "..."
                return SchemaMismatch(
                    f"{where}, column {name!r}",
                    f"{shown} is no {meant[name]}",
                    f"mend it, or declare another type: --types {name}=type",
                )
        return UnreadableInput(where, failure, remedy)


def _group(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Some of the lines, of a block's size or little more."""
    size = 0
    for number, line in islice(lines, 4096):
        yield number, line
        if (size := size + len(line)) >= SAMPLE:
            return


def _within(path: Path, line: int, text: bytes) -> DdflowError | None:
    """The error of lines that a parser must not see, or None; ``line``: how many came before."""
    try:
        Bounds(path, line)(pa.py_buffer(text))
    except UnreadableInput as error:
        return error
    return None


class _Whole(str):
    """A whole number, as it is written."""

    __slots__ = ()


def _is_large(column: pa.Array) -> bool:
    """Whether doubles are so large that they may be whole numbers that were rounded."""
    return pat.is_float64(column.type) and bool(pc.any(pc.greater_equal(pc.abs(column), 10.0**EXACT)).as_py())


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

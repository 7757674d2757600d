"""Compare two tables by key: find added, removed and changed rows, and the changed columns.

Guarantees: memory holds the rows before, an index of their keys, and the differences. The rows after are streamed from
files. A duplicate key, a null key or a column of another type raises an error that names the side.

>>> before = {"id": [1, 2, 3], "city": ["Bern", "Basel", "Chur"], "n": [1, 2, 3]}
>>> after = [{"id": 2, "city": "Basel", "n": 2}, {"id": 3, "city": "Zug", "n": 3}, {"id": 4, "city": "Bern", "n": 4}]
>>> for row in compare(before, after, key="id").select(["id", "_change", "_changed", "city_before"]).to_pylist():
...     print(*row.values())
1 removed None Bern
3 changed ['city'] Chur
4 added None None
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.casts import cast_exactly, suggest_type
from ddflow.columns.declared import to_arrow_schema
from ddflow.columns.hashing import (
    NONE,
    Ints,
    RowHasher,
    Secret,
    Words,
    compute_value_hashes,
)
from ddflow.columns.names import did_you_mean, parse_column_names
from ddflow.columns.rows import take_rows
from ddflow.columns.schema import (
    INTERVAL,
    cast_losslessly,
    check_values,
    column_arrays,
    decode_array,
    is_text,
    normalize_intervals,
    normalize_type,
    to_array,
    to_batch,
)
from ddflow.columns.sorting import sort_by_identity
from ddflow.connectors.error_location import is_path
from ddflow.connectors.files import AS_USUAL as FILES_AS_USUAL, FileOptions, open_files
from ddflow.connectors.files.file_path import FilePath, build_dialect
from ddflow.connectors.files.kinds import CSV, TSV, Dialect, is_text_kind
from ddflow.connectors.files.places import STDIN, FileLocation, list_file_locations
from ddflow.connectors.files.spelling import UnparsableValue, parse_texts_strictly
from ddflow.connectors.to_arrow import build_files_reader, to_table
from ddflow.dataflow.admission import InputValidator
from ddflow.engine.full_contents import SECRET, refuse_duplicate_keys
from ddflow.errors import (
    DdflowError,
    DuplicateKeys,
    ErrorText,
    NullKey,
    Option,
    SchemaMismatch,
    SpecError,
    UnreadableInput,
)
from ddflow.errors.base import replace_error_texts, set_error_row_names
from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.metrics import Look
from ddflow.plan.inputs.bind import BoundUpserts, bind_upserts
from ddflow.plan.inputs.spec import Upsert
from ddflow.trace.index import Index, IndexWrite


class ComparisonSide(NamedTuple):
    """One of the two sides of a comparison.

    ``given``: the argument of `compare`.  ``how``: options of its files.  ``rows``: the rows with their first types.

    >>> from ddflow.connectors.files.source import AS_USUAL
    >>> schema = pa.schema({"n": pa.string()})
    >>> sides = [ComparisonSide(None, AS_USUAL, pa.table({"n": each})) for each in ([1.5], ["7", "7,50"])]
    >>> make_text_column_notes(schema, sides)[0].partition(", so ")[0]
    "compare: 'n' is double before and string after (because of '7,50')"
    """

    given: Any
    how: FileOptions
    rows: pa.Table

    @property
    def file(self) -> tuple[str, int] | None:
        """The file that the rows come from, and the number of its first row.

        The value is None if the rows do not come from a single file. O(files).
        """
        places = (
            list_file_locations([os.fspath(self.given)], self.dialect.kind)
            if is_path(self.given) and self.given != STDIN
            else []
        )
        return (places[0].name, 1 + (places[0].kind.name in (CSV, TSV))) if len(places) == 1 else None

    @property
    def dialect(self) -> Dialect:
        """The CSV dialect of the files."""
        return build_dialect(self.given) if isinstance(self.given, FilePath) else self.how.dialect

    def add_file_location(self, error: DdflowError) -> DdflowError:
        """If an error is about rows of the file, add the file and the row numbers within the file."""
        if (file := self.file) is None:
            return error
        set_error_row_names(error, lambda row: f"row {row + file[1]:,}", file[0])
        return replace_error_texts(error, asked=error.asked + f", {file[0]}")

    def describe_invalid_text(self, name: str, kind: pa.DataType) -> str:
        """Find the first text in a column that cannot be read as a value of a type; describe the text and its place.

        Return "" if all texts are valid. O(rows).
        """
        try:
            parse_texts_strictly(
                to_array(self.rows.column(name)).cast(pa.string()), kind, forms=self.dialect.value_formats
            )
        except UnparsableValue as error:
            file, text = self.file, self.rows.column(name)[error.row].as_py()
            place = "" if file is None else f" in {file[0]}, row {error.row + file[1]:,}"
            return f" (because of {text!r:.100}{place})"
        except (pa.ArrowException, ValueError):
            return ""
        return ""


def make_text_column_notes(schema: pa.Schema, sides: Sequence[ComparisonSide]) -> tuple[str, ...]:
    """Return a note for each column that is text on only one side.  ``schema``: the columns of the comparison."""
    notes = list[str]()
    for field in schema:
        if not is_text(field.type) or any(field.name not in side.rows.column_names for side in sides):
            continue
        was, now = (side.rows.column(field.name).type for side in sides)
        if is_text(was) != is_text(now) and not {pa.null()} & {was, now}:
            odd = sides[is_text(now)].describe_invalid_text(field.name, was if is_text(now) else now)
            before, after = (odd, "") if is_text(was) else ("", odd)
            types = f"{was} before{before} and {now} after{after}"
            notes.append(f"compare: {field.name!r} is {types}, so its values are compared as text")
    return tuple(notes)


CHANGE: Final = "_change"
CHANGED: Final = "_changed"
KINDS: Final = ("removed", "added", "changed")
SIDES: Final = ("before", "after")
SUFFIXES: Final = tuple(f"_{side}" for side in SIDES)
_SEVERAL_ROWS: Final = "each row needs a different key: name more columns in the key, or fix the rows"
ROWS: Final = 1 << 16
"""The number of rows to hash at a time."""
NullKeys = Literal["error", "drop", "keep"]


class Comparison(NamedTuple):
    """The result of a comparison.

    ``table``: the result of `compare`.  ``notes``: warnings about columns, one line each.  ``rows``: the number of rows
    of each side.  ``doubts``: `MultiFileReader.doubts` of the files of both sides.
    """

    table: pa.Table
    notes: tuple[str, ...]
    rows: tuple[int, int]
    doubts: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Number of added, removed and changed keys."""
        found = np.asarray(self.table.column(CHANGE).to_pylist(), object)
        return {kind: int((found == kind).sum()) for kind in ("added", "removed", "changed")}


def compare(
    before: Any,
    after: Any,
    key: str | Sequence[str],
    *,
    ignore: str | Sequence[str] = (),
    null_key: NullKeys = "error",
    types: Any = None,
) -> pa.Table:
    """Compare two tables by key and return their differences.

    Parameters
    ----------
    before, after : table
        Rows of any kind: a table or a frame, a path, a dataset, a dict of lists, a list of dicts.
    key : str or sequence of str
        The columns that identify a row.
    ignore : str or sequence of str
        Columns to leave out.  Pass ``["_time", "_diff"]`` for an output of an engine, if only its rows matter.
    null_key : "error", "drop" or "keep"
        Whether to refuse, leave out, or compare rows with a null in their key.  Groups of a count may have such keys.
    types : {name: type} or schema, optional
        The types of columns, as in a flow, for text files and for columns whose values show no type.  By default a
        column without values is text.

    Returns
    -------
    pyarrow.Table
        A row for each different key, sorted by key.  It has the key's columns; ``_change`` ("added", "removed" or
        "changed"); ``_changed``, a list of the changed columns, null unless "changed"; and every other column twice, as
        ``name_before`` and ``name_after``, null on a side without the row.

    Raises
    ------
    DuplicateKeys
        If a side has several rows of one key.  The error names them.
    NullKey
        If a key is null, and ``null_key`` is "error".
    SchemaMismatch
        For a key column missing on a side, and for a column with two types without common values.
    SpecError
        For names that clash with column names of the result.
    DdflowError
        The errors of reading the rows.

    Warns
    -----
    UserWarning
        For a column that is missing, and so null, on one side, and for a column that is text on only one side.

    Notes
    -----
    O(n) expected, for n rows of both sides, plus the time to sort the differences.

    Examples
    --------
    >>> compare({"id": [1]}, {"id": [1, 2]}, key="id").to_pylist()
    [{'id': 2, '_change': 'added', '_changed': None}]
    """
    schema = pa.schema([]) if types is None else to_arrow_schema(types, "types of compare")
    done = compare_tables(
        before, after, key, ignore, dict(zip(schema.names, schema.types, strict=True)), null_key=null_key
    )
    for note in done.notes:
        warnings.warn(note, stacklevel=2)
    return done.table


def compare_tables(
    before: Any,
    after: Any,
    key: Any,
    ignore: Any = (),
    types: Mapping[str, pa.DataType] | None = None,
    how: FileOptions = FILES_AS_USUAL,
    look: Look = lambda rows: None,
    null_key: NullKeys = "error",
) -> Comparison:
    """Compare two tables like `compare`, and also return notes and counts.

    ``types``, ``how``: options for files.  ``look``: progress callback, receives the number of rows read from files
    since its last call.
    """
    keys, left_out = parse_column_names(key, "compare", "key"), parse_column_names(ignore, "compare", "ignore")
    given, doubts = (before, after), dict[str, None]()
    for each in filter(is_path, given):
        _list_files(each, how)  # reports a missing file before the other side is read
    first = _read_all(*_open_rows(before, types or {}, how, "the rows before", look, doubts))
    kinds, tables = _open_rows(after, types or {}, how, "the rows after", look, doubts)
    streams = _is_file(after) and all(first.schema.field(f.name) == f for f in kinds if f.name in first.column_names)
    both = [first, kinds.empty_table() if streams else _read_all(kinds, tables)]
    there = [name for table in both for name in table.column_names]
    _check_columns_exist(left_out, "ignore", there)
    _check_columns_exist(types or (), "types", there)
    both = [table.drop_columns([name for name in table.column_names if name in left_out]) for table in both]
    for table, side in zip(both, SIDES, strict=True):
        _check_columns_exist(keys, f"key (in the rows {side})", table.column_names)
    sides = [ComparisonSide(*each) for each in zip(given, (how, how), both, strict=True)]
    both = both if streams else _reread_text_columns(both, given, how)
    schema = _combine_columns(both, keys)
    lacking = [(n, i) for n in schema.names for i, table in enumerate(both) if n not in table.column_names]
    notes = tuple(
        f"compare: {name!r} is only in the rows {SIDES[1 - i]}, so it is null {SIDES[i]}" for name, i in lacking
    )
    notes += make_text_column_notes(schema, sides)
    bound = bind_upserts("rows", schema, Upsert(key=keys, null_key=null_key))
    matcher = _RowMatcher(bound, _conform(both[0], schema, "the rows before"))
    if not matcher.has_unique_keys:
        _refuse_keys(both[0], bound, 0, sides[0])
    matcher.compare(_conform(table, schema, "the rows after") for table in (tables if streams else [both[1]]))
    if not matcher.has_unique_keys:
        again = _read_all(*_open_rows(after, types or {}, how, "the rows after")) if streams else both[1]
        _refuse_keys(_conform(again, schema, "the rows after"), bound, 1, sides[1])
    return Comparison(matcher.build_table(), notes, (both[0].num_rows, matcher.count), tuple(doubts))


def _open_rows(
    given: Any,
    types: Mapping[str, Any],
    how: FileOptions,
    what: str,
    look: Look = lambda rows: None,
    doubts: dict[str, None] | None = None,
) -> tuple[pa.Schema, Iterable[pa.Table]]:
    """Open rows, and return their normal types and their tables, which are read one after the other.

    ``doubts`` collects notes about doubtful files, each note once.
    """
    tables: Iterable[pa.Table]
    if isinstance(given, str | os.PathLike):
        files = open_files([os.fspath(given)], types=types, how=_build_file_options(given, how))
        if doubts is not None:
            doubts |= dict.fromkeys(files.doubts)
        rows = build_files_reader(files)
        schema, tables = rows.schema, (pa.Table.from_batches([batch]) for batch in _report_rows_read(rows, look))
    else:
        table = to_table(given, what, pa.schema(types))
        check_values(table, what)  # the readers of files check theirs
        schema, tables = table.schema, [table]
    names = schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaMismatch(what, f"the columns {twice} occur more than once", "use a different name for each column")
    normal = pa.schema([(field.name, types.get(field.name, normalize_type(field.type))) for field in schema])
    return normal, (_normalize(table, normal, types, what) for table in tables)


def _normalize(table: pa.Table, schema: pa.Schema, types: Mapping[str, Any], what: str) -> pa.Table:
    """Convert the columns of a table to their normal types, or to the types that the caller declares."""
    columns = (
        cast_losslessly(column, field, what)
        if field.name in types
        else pa.chunked_array([decode_array(chunk) for chunk in column.chunks], field.type)
        for field, column in zip(schema, table.columns, strict=True)
    )
    return pa.table([*columns], schema=schema)


def _read_all(schema: pa.Schema, tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if (tables := list(tables)) else schema.empty_table()


def _build_file_options(given: Any, how: FileOptions) -> FileOptions:
    """Return the options for a file: the common options, with the dialect of a `FilePath`."""
    return replace(how, dialect=build_dialect(given)) if isinstance(given, FilePath) else how


def _list_files(given: Any, how: FileOptions) -> list[FileLocation]:
    """List the files that a path names. Raises `UnreadableInput`."""
    return list_file_locations([os.fspath(given)], _build_file_options(given, how).dialect.kind)


def _report_rows_read(batches: Iterable[pa.RecordBatch], look: Look) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        look(batch.num_rows)
        yield batch


def _check_columns_exist(names: Iterable[str], option: str, known: list[str]) -> None:
    for name in names:
        if name not in known:
            found = f"{option} names the column {name!r}, which does not exist"
            raise SchemaMismatch("compare", found, did_you_mean(name, dict.fromkeys(known)))


def _reread_text_columns(both: list[pa.Table], given: tuple[Any, Any], how: FileOptions) -> list[pa.Table]:
    """Read a text column again with the type of the other side, if the two types have no common values."""
    first, second = both
    shared = [name for name in first.column_names if name in second.column_names]
    odd = [name for name in shared if _find_common_type([table.column(name) for table in both]) is None]
    texts = [bool(odd) and _is_text_file(each, how) for each in given]
    if not any(texts):
        return both
    out = list(both)
    for i, text in enumerate(texts):
        if text:
            kinds = {name: pa.string() if all(texts) else both[1 - i].column(name).type for name in odd}
            out[i] = _read_all(*_open_rows(given[i], kinds, how, f"the rows {SIDES[i]}")).select(both[i].column_names)
    return out


def _is_text_file(given: Any, how: FileOptions) -> bool:
    """Return whether rows come from text files, whose column types are only guessed."""
    return _is_file(given) and all(is_text_kind(each.kind.name) for each in _list_files(given, how))


def _is_file(given: Any) -> bool:
    """Return whether rows come from files, which can be read again, unlike stdin."""
    return isinstance(given, str | os.PathLike) and given != STDIN


def _find_common_type(columns: Sequence[pa.ChunkedArray]) -> pa.DataType | None:
    """Return a type that can hold the values of both columns; return None if there is none."""
    one, other = (column.type for column in columns)
    if one == other:
        return one
    for kind in (one, other, suggest_type(one, other), suggest_type(other, one)):
        if all(cast_exactly(to_array(column), kind) is not None for column in columns):
            return kind
    return None


def _combine_columns(both: list[pa.Table], keys: tuple[str, ...]) -> pa.Schema:
    """Combine the columns of both sides: first the key, then other columns in their order."""
    names = dict.fromkeys([*keys, *(name for table in both for name in table.column_names)])
    fields = []
    for name in names:
        columns = [table.column(name) for table in both if name in table.column_names]
        kind = _find_common_type(columns) if len(columns) == 2 else columns[0].type
        if kind is None:
            found = f"it is {columns[0].type} before and {columns[1].type} after"
            raise SchemaMismatch(
                f"compare, column {name!r}",
                found,
                ErrorText("cast one of them, or omit the column: ", Option("ignore")),
                column=name,
            )
        fields.append(pa.field(name, _replace_null_type(kind)))
    values = [name for name in names if name not in keys]
    shown = [*keys, CHANGE, CHANGED, *(name + suffix for name in values for suffix in SUFFIXES)]
    if clashes := sorted({name for name in shown if shown.count(name) > 1}):
        raise SpecError(
            "compare",
            f"the names {clashes} occur more than once in the result",
            ErrorText("rename them, or ", Option("ignore"), " them"),
        )
    return pa.schema(fields)


def _replace_null_type(kind: pa.DataType) -> pa.DataType:
    """Replace the null type, whose values are all null, by text, also within lists and structs."""
    if pat.is_null(kind):
        return pa.string()
    if pat.is_list(kind) or pat.is_large_list(kind):
        field = kind.value_field.with_type(_replace_null_type(kind.value_type))
        return pa.list_(field) if pat.is_list(kind) else pa.large_list(field)
    return pa.struct([each.with_type(_replace_null_type(each.type)) for each in kind]) if pat.is_struct(kind) else kind


def _conform(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Convert a table to the columns of a schema. Copy only columns of other types. Raises `SchemaMismatch`."""
    columns = list[Any]()
    for field in schema:
        there = field.name in table.column_names
        column: Any = table.column(field.name) if there else pa.nulls(table.num_rows, field.type)
        if column.type != field.type:
            column = cast_losslessly(column, field, what)
        columns.append(normalize_intervals(to_array(column)) if there and field.type == INTERVAL else column)
    return pa.table(columns, schema=schema)


def _refuse_keys(table: pa.Table, bound: BoundUpserts, side: int, given: ComparisonSide) -> None:
    """Raise the error for null keys or for duplicate keys, with the first rows that have them. O(rows)."""
    asked, keys = f"compare: the rows {SIDES[side]}", RowHasher(bound.key_schema, SECRET)
    try:
        events, _ = InputValidator(bound).validate_rows(table, 0, time=0)
        refuse_duplicate_keys(asked, keys, sort_by_identity(*keys.identify_rows(events.rows)), [events])
    except (DuplicateKeys, NullKey) as error:
        replace_error_texts(error, asked, error.found, error.fix if isinstance(error, NullKey) else _SEVERAL_ROWS)
        raise given.add_file_location(error) from None
    raise UnreadableInput(asked, "the rows changed while ddflow read them", "compare them again")


class _RowMatcher:
    """Match rows by key, and find the rows that differ.

    An index in memory maps the identity of each key before to its row and to a hash of its values.

    ``before``: the rows before. ``count``: the number of rows after. ``has_unique_keys``: whether each row so far has a
    key, or may lack it, and no other row of its side has the same key.
    """

    def __init__(self, bound: BoundUpserts, before: pa.Table) -> None:
        self.bound, self.before, self.secret = bound, before, Secret.fresh()
        self.count, self.has_unique_keys = 0, True
        self.values = [name for name in bound.schema.names if name not in bound.spec.key]
        self.hashers = [
            RowHasher(schema, self.secret)
            for schema in (bound.key_schema, pa.schema([bound.schema.field(name) for name in self.values]))
        ]
        self.settled = np.zeros(before.num_rows + 1, np.bool_)
        """Marks the rows before that have no key or that a row after has matched, and one unused element."""
        self.index = Index(self.hashers[0].wide, words=0)
        self.index.reserve_entries(before.num_rows)
        for slot, (_, keyless, high, low, value) in enumerate(self._hash_batches([before])):
            n = high.size
            self.settled[slot * ROWS : slot * ROWS + n] = keyless
            row, live, order = np.where(keyless, -1, np.arange(n)), np.ones(n, np.uint8), np.empty((n, 0), np.int64)
            self.index.write(IndexWrite(np.full(n, -1), self.index.built, row, high, low, value, live, order, slot))
        self.has_unique_keys &= len(self.index) == np.count_nonzero(~self.settled[:-1])
        self.differing, self.rows = [self.before.slice(0, 0)], list[Ints]()
        """The rows after that differ or are added, and for each of these rows the row before, or -1."""

    def compare(self, tables: Iterable[pa.Table]) -> None:
        """Compare the rows after with the rows before. O(rows) expected."""
        known, added = np.count_nonzero(self.settled[:-1]), [(NONE, NONE)]
        for batch, keyless, high, low, value in self._hash_batches(tables):
            self.count += high.size
            prior = self.index.look_up_keys(high, low, np.arange(high.size, dtype=np.int32))
            absent = prior.reference == 0
            rows = (prior.reference >> SLOT & SLOTS) * ROWS + (prior.reference & ROWS - 1)
            rows[absent | keyless] = -1
            self.settled[rows] = True
            known, new = known + np.count_nonzero(rows >= 0), absent & ~keyless
            differ = np.flatnonzero(new | (prior.value != value) & ~keyless)
            added.append((high[new], low[new] if low.size else low))
            self.differing.append(pa.Table.from_batches([batch.take(pa.array(differ))], self.before.schema))
            self.rows.append(rows[differ])
        by = sort_by_identity(np.concatenate([high for high, _ in added]), np.concatenate([low for _, low in added]))
        self.has_unique_keys &= by.starts.size == by.high.size + 1 and known == np.count_nonzero(self.settled[:-1])

    def _hash_batches(self, tables: Iterable[pa.Table]) -> Iterator[tuple[pa.RecordBatch, Any, Words, Words, Words]]:
        """Yield rows in batches, the marks of rows without a key, the identities of keys, and the hashes of values."""
        (keys, values), rule = self.hashers, self.bound.spec.null_key
        for table in tables:
            for begin in range(0, table.num_rows, ROWS):
                batch = to_batch(table.slice(begin, ROWS))
                keyless = (self.bound.mark_events_without_key(batch) != 0) & (rule != "keep")
                self.has_unique_keys &= rule != "error" or not keyless.any()
                hashes = values.compute_value_hashes(column_arrays(batch, self.values), batch.num_rows)
                yield batch, keyless, *keys.identify_rows(batch), hashes

    def build_table(self) -> pa.Table:
        """Build the table of differences. O(differences log differences)."""
        at = np.concatenate([*self.rows, np.flatnonzero(~self.settled[:-1])])
        after = np.arange(at.size) < sum(map(len, self.rows))
        there = np.stack([at >= 0, after])
        rows = [
            take_rows(self.before, at),
            take_rows(pa.concat_tables(self.differing), np.where(after, np.arange(at.size), -1)),
        ]
        keys = take_rows(pa.concat_tables(rows), np.where(there[0], 0, at.size) + np.arange(at.size))
        columns: dict[str, Any] = {name: keys.column(name) for name in self.bound.spec.key}
        columns[CHANGE] = pa.array(KINDS, pa.string()).take(pa.array(np.where(there.all(axis=0), 2, there[1])))
        columns[CHANGED] = _list_changed_columns(rows, self.values, there.all(axis=0), self.secret)
        both = list(zip(rows, SUFFIXES, strict=True))
        columns |= {name + suffix: side.column(name) for name in self.values for side, suffix in both}
        return _sort_rows(pa.table(columns), tuple(self.bound.spec.key))


def _list_changed_columns(sides: list[pa.Table], values: list[str], both: Any, secret: Secret) -> pa.Array:
    """List the changed columns of each key. The result is null if only one side has the key."""
    hashes = [[compute_value_hashes(side.select([name]), secret) for side in sides] for name in values]
    differ = np.array([(one != other) & both for one, other in hashes], np.bool_).reshape(len(values), both.size).T
    ends = np.concatenate([[0], np.cumsum(differ.sum(axis=1))])
    names = pa.array(values, pa.string()).take(pa.array(np.nonzero(differ)[1]))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), names, mask=pa.array(~both))


def _sort_rows(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Sort the rows by key, null first. If Arrow cannot sort the keys, the rows keep their order."""
    by: list[Any] = [(name, "ascending", "at_start") for name in keys]
    try:
        return table.take(pc.sort_indices(table, by))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # UUIDs
        return table

"""Bind the spec of an upsert input to its schema.

Invariant: this file checks the names and types of all columns, so every binding can run. A binding derives the row's
columns, and marks the events of a batch that are deletes or lack a key. A binding stores no batches.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.spec import Upsert, tombstone
>>> schema = pa.schema({"id": pa.int64(), "v": pa.string(), "at": pa.int64(), "op": pa.string()})
>>> bound = bind_upserts("orders", schema, Upsert(key="id", order_by="at", delete=tombstone("op", "D")))
>>> bound.row_schema.names, bound.tracked
(['id', 'v', 'at'], ['v', 'at'])
>>> bound.mark_deletes(pa.record_batch({"id": [1], "v": ["x"], "at": [1], "op": ["D"]}, schema)).tolist()
[1]
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Flags, unpack_booleans, unpack_validity
from ddflow.columns.layout import OTHER, column_layout
from ddflow.columns.names import DIFF, check_columns_exist
from ddflow.columns.schema import is_flat_type, is_key_type, is_text, is_time_type
from ddflow.connectors.formats.base import ABSENT, BAD, DELETED, Format, MessageTarget
from ddflow.errors import DeclareFix, ErrorText, ExpressionError, NullKey, Option, SpecError, TombstoneFix
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.plan.inputs.spec import Tombstone, Upsert
from ddflow.plan.inputs.watermark import BoundWatermark, bind_watermark
from ddflow.plan.merge.bound import BoundMerge, bind_merge, build_event_schema, build_merged_row_schema
from ddflow.plan.merge.merge import Merge
from ddflow.plan.merge.strategy import last

NULL_TEST: Final = re.compile(r"\s*(?:[A-Za-z_]\w*|`[^`]+`)\s+is\s+null\s*", re.IGNORECASE)
"""The SQL text of a condition that is true if a column is null."""


@dataclass(frozen=True, kw_only=True)
class BoundInput:
    """The columns and the spec of any kind of input, and the properties that all kinds share."""

    name: str
    schema: pa.Schema
    spec: Any
    unstamped_row_schema: pa.Schema
    """The columns of the row, without the column of ``ingested=``."""
    time_type: pa.DataType
    format: Format | None = None
    """The format of the input's messages, or None if the input takes rows."""
    guessed: frozenset[str] = frozenset()
    """Columns that the flow does not declare. A run or `evolve` added these columns."""

    stale_output: ClassVar[Any] = None
    unique: ClassVar[bool]
    """Whether each row has multiplicity one."""

    def __post_init__(self) -> None:
        # The property raises the error of a watermark that does not fit the row.
        assert self.watermark is None or not self.spec.holds_back, "the spec refuses both"

    @cached_property
    def watermark(self) -> BoundWatermark | None:
        """The watermark, or None if the input has none."""
        key = self.spec.key if self.unique else self.row_schema.names
        return bind_watermark(self.name, self.row_schema, self.spec.watermark, key, self.spec.ahead)

    @cached_property
    def stamp(self) -> pa.Field | None:
        """The column of ``ingested=``, which has the times of events. None without this option."""
        return None if self.spec.ingested is None else pa.field(self.spec.ingested, self.time_type, nullable=False)

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of the row."""
        return self.unstamped_row_schema if self.stamp is None else self.unstamped_row_schema.append(self.stamp)

    @cached_property
    def unstamped_event_schema(self) -> pa.Schema:
        """The columns of admitted events, without the column of ``ingested=``."""
        raise NotImplementedError

    @cached_property
    def event_schema(self) -> pa.Schema:
        """The columns of admitted events."""
        return self.unstamped_event_schema if self.stamp is None else self.unstamped_event_schema.append(self.stamp)

    @cached_property
    def message_target(self) -> MessageTarget:
        """The result of decoding messages: either the newest row of each key, or every row of a history."""
        spec, schema, format = self.spec, self.schema, self.format
        assert format is not None
        own = list_format_columns(format)
        columns = pa.schema([field for field in schema if field.name not in own])
        deciding = [*spec.order_by, spec.time, spec.seq, *(name for order, _ in spec.grouped for name in order)]
        named = tuple(name for name in deciding if name in columns.names and name not in spec.key)
        ordered = bool(format.order) and format.order[0][0] in schema.names
        keyed, history = spec.null_key == "error", not self.unique
        return MessageTarget(repr(self.name), columns, tuple(spec.key), named, ordered, schema, keyed, history=history)

    @property
    def has_bad_event_column(self) -> bool:
        """Whether a column marks bad events."""
        return self.format is not None and self.format.on_bad == "drop"

    @property
    def side_output_schemas(self) -> dict[str, pa.Schema]:
        """The columns of the side outputs that this input adds, by name."""
        out = {} if self.stale_output is None else dict([self.stale_output])
        if self.has_bad_event_column:
            out[f"{self.name}.bad"] = pa.schema(list(self.schema.field(BAD).type))
        return out

    @property
    def fixed_type_columns_by_option(self) -> dict[str, Sequence[str | None]]:
        """For each option, the columns that decide which event wins. Their types never change."""
        return {"time": [self.spec.time], "watermark": [name for name, _ in self.spec.watermark or ()]}

    @property
    def fixed_type_columns(self) -> frozenset[str]:
        """All columns whose types never change."""
        return frozenset(
            name for names in self.fixed_type_columns_by_option.values() for name in names if name is not None
        )

    def mark_events_without_key(self, batch: pa.RecordBatch) -> Flags:
        """Mark the events that lack a key or a diff: uint8[n]. O(n) only if a column has nulls."""
        out = np.zeros(batch.num_rows, np.uint8)
        for name in self.spec.key or [DIFF]:
            present = unpack_validity(batch.column(name))
            if present.size:
                out |= np.uint8(1) - present
        return out


@dataclass(frozen=True, kw_only=True)
class BoundUpserts(BoundInput):
    """A spec of upserts, bound by `bind_upserts`.  Fields of ``key_schema`` are nullable only with
    ``null_key="keep"``."""

    spec: Upsert
    key_schema: pa.Schema
    tracked: list[str]
    """Columns that are compared to decide if a row changed: ``track``, or all but the key and ``noop_ignore``."""
    tombstone: pa.Scalar | None
    condition: Expression | None
    where: Expression | None
    merging: BoundMerge | None = None
    """The merge that folds events, or None if events replace the row."""

    has_stored_rows: ClassVar[bool] = True
    """Whether the state stores the input's rows."""
    unique: ClassVar[bool] = True
    null_error: ClassVar[type[NullKey]] = NullKey

    @property
    def non_null_columns(self) -> list[str]:
        """The columns of events that must not be null. An event with a null in one of these columns is bad."""
        return [] if self.spec.null_key == "keep" else list(self.spec.key)

    @property
    def missing_part_name(self) -> str:
        """What a bad event lacks, as text for error messages, for example ``the key ['id']``."""
        return f"the key {list(self.spec.key)}"

    @property
    def replacement_key(self) -> tuple[str, ...] | None:
        """The key if each event replaces the row of its key, or None if a merge combines each event with the row."""
        replacing = self.spec.merge is None or self.spec.merge == Merge(default=last())
        return tuple(self.spec.key) if replacing else None

    @property
    def formulas(self) -> dict[str, Expression]:
        """For each option that contains an expression: the expression, which is computed for events."""
        given = {"delete": self.condition, "where": self.where}
        return {option: each for option, each in given.items() if each is not None}

    @property
    def fixed_type_columns_by_option(self) -> dict[str, Sequence[str | None]]:
        """For each option, the columns that decide which event wins. Their types never change."""
        spec = self.spec
        return {
            "key": spec.key,
            "order_by": spec.order_by,
            "seq": [spec.seq],
            "groups": [name for order, _ in spec.grouped for name in order],
            "tie='greatest'": self.tracked if spec.tie == "greatest" else (),
            **super().fixed_type_columns_by_option,
        }

    @property
    def event_columns(self) -> list[str]:
        """The columns of an event in outputs of ``stale=``.

        If the input has a machine, these columns are the columns that the machine receives.
        """
        machine = self.merging.machine if self.merging is not None else None
        return self.unstamped_row_schema.names if machine is None else machine.told

    @property
    def stale_output(self) -> tuple[str, pa.Schema] | None:
        """The name and the columns of the output that ``stale=`` adds.  The columns have the types of the events."""
        given = [self.schema.field(name) for name in self.event_columns]
        if self.spec.stale == "mark":
            return f"{self.name}.events", pa.schema([*given, pa.field("_stale", pa.bool_(), nullable=False)])
        if self.spec.stale == "side":
            winners = [pa.field(f"_winner_{n}", self.schema.field(n).type) for n in self.spec.order_by]
            return f"{self.name}.stale", pa.schema([*given, *winners])
        return None

    @cached_property
    def unstamped_event_schema(self) -> pa.Schema:
        """The columns of admitted events, without the column of ``ingested=``."""
        return build_event_schema(self.schema, self.merging)

    def add_event_columns(self, events: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
        """Convert events to the columns of `build_event_schema`. ``names``: the columns of the events' batch. O(n)."""
        if self.merging is None:
            return events
        lacks = self.format is not None and self.format.leaves_out
        return self.merging.add_event_columns(events, names, events.column(ABSENT) if lacks else None)

    @property
    def required_columns(self) -> list[str]:
        """The columns that every batch must have."""
        return [*self.spec.key, *([self.spec.time] if self.spec.time else [])]

    @cached_property
    def null_deletes(self) -> str | None:
        """The column whose null deletes a key, if ``delete=`` has the form "column is null"."""
        read = () if self.condition is None else self.condition.columns or ()
        if len(read) != 1 or not NULL_TEST.fullmatch(getattr(self.condition, "text", None) or ""):
            return None
        return read[0] if column_layout(self.schema.field(read[0]).type)[0] != OTHER else None

    def mark_deletes(self, batch: pa.RecordBatch) -> Flags:
        """Mark the events that are deletes by ``delete=``, or because ``where=`` is false: uint8[n]. O(n)."""
        out = self._mark_deletes_by_option(batch)
        if self.where is None:
            return out
        with suppress(ExpressionError):
            return out | (np.uint8(1) - unpack_booleans(self.where(batch)))
        others = np.flatnonzero(out == 0)  # deletes have filler cells, and the filter may fail for them
        out[others] = np.uint8(1) - unpack_booleans(self.where(batch.take(pa.array(others))))
        return out

    def _mark_deletes_by_option(self, batch: pa.RecordBatch) -> Flags:
        if self.null_deletes is not None:
            present = unpack_validity(batch.column(self.null_deletes))
            return np.uint8(1) - present if present.size else np.zeros(batch.num_rows, np.uint8)
        if self.condition is not None:
            return unpack_booleans(self.condition(batch))
        if not isinstance(self.spec.delete, Tombstone):
            return np.zeros(batch.num_rows, np.uint8)
        column = batch.column(self.spec.delete.column)
        if self.tombstone is not None:
            return unpack_booleans(pc.equal(column, self.tombstone))
        if pat.is_boolean(column.type):
            return unpack_booleans(column)
        present = unpack_validity(column)
        return present if present.size else np.ones(len(column), np.uint8)


def list_format_columns(format: Format | None) -> set[str]:
    """List the columns that a format adds to events. The columns are not part of rows."""
    return set() if format is None else {*(name for name, _ in format.order), DELETED, ABSENT, BAD}


def bind_upserts(name: str, schema: pa.Schema, spec: Upsert, format: Format | None = None) -> BoundUpserts:
    """Bind a spec to the schema of its input. ``format``: the format that added the last columns of the schema.

    O(columns). Raises `SpecError` or `ExpressionError`. The message names the column.
    """
    check_name_and_spec(name, spec)
    own = list_format_columns(format)
    check_columns(name, schema, spec, own)
    dropped = {spec.time, spec.seq, spec.delete.column if isinstance(spec.delete, Tombstone) else None} | own
    if spec.value is None:
        wanted = [f.name for f in schema if f.name not in dropped or f.name in spec.key]
    else:
        wanted = [f.name for f in schema if f.name in spec.value or f.name in spec.key]
    row_schema = build_merged_row_schema(schema, spec, pa.schema([schema.field(n) for n in wanted]))
    for option, columns in (("noop_ignore", spec.noop_ignore), ("track", spec.track or ())):
        lost = [n for n in columns if n not in wanted]
        if lost:
            raise SpecError(
                Option(option) + f" of {name!r}",
                f"the columns {lost} are not in the row",
                f"the columns of the row are {wanted}",
            )
    keep_null = spec.null_key == "keep"
    condition = _compile_condition(spec.delete if isinstance(spec.delete, str) else None, schema, f"delete of {name!r}")
    where = _compile_condition(spec.where, schema, f"where of {name!r}")
    return BoundUpserts(
        name=name,
        schema=schema,
        spec=spec,
        unstamped_row_schema=row_schema,
        key_schema=pa.schema([schema.field(n).with_nullable(keep_null) for n in spec.key]),
        tracked=[n for n in wanted if spec.counts(n)],
        time_type=schema.field(spec.time).type if spec.time else pa.int64(),
        tombstone=find_tombstone_value(repr(name), schema, spec.delete),
        condition=condition,
        where=where,
        merging=bind_merge(name, schema, spec, row_schema),
        format=format,
    )


def check_name_and_spec(name: Any, spec: Any) -> None:
    """Raise `SpecError` if the name of an input is not text, or if its spec is not an `Upsert`."""
    if not isinstance(name, str) or not isinstance(spec, Upsert):
        found = f"its name is {name!r:.200} and its spec is {spec!r:.200}"
        raise SpecError("an input of a flow", found, "pass a name as text, a schema, and dd.Upsert(...)")


def _compile_condition(text: str | None, schema: pa.Schema, what: str) -> Expression | None:
    return None if text is None else compile_expression(text, schema, boolean=True, what=what)


def check_columns(name: str, schema: pa.Schema, spec: Any, own: set[str]) -> None:
    """Refuse missing columns and columns of a wrong type. ``own``: the columns that the format adds.

    Raises `SpecError`.
    """
    tombstone = [spec.delete.column] if isinstance(spec.delete, Tombstone) else []
    named = {
        "key": spec.key,
        "order_by": spec.order_by,
        "noop_ignore": spec.noop_ignore,
        "value": spec.value or (),
        "track": spec.track or (),
        "seq": [spec.seq] if spec.seq else [],
        "time": [spec.time] if spec.time else [],
        "delete": tombstone,
        "watermark": [column for column, _ in spec.watermark or ()],
    }
    for column in spec.order_by:
        if schema.get_field_index(f"_order_{column}") >= 0:
            raise SpecError(
                ErrorText(Option("order_by"), f" of {name!r}"),
                f"there is a column '_order_{column}', but ddflow stores the order of a key under that name",
                "rename that column in the input",
            )
    for option, columns in named.items():
        check_columns_exist(columns, schema.names, Option(option) + f" of {name!r}")
    if spec.ingested is not None and (spec.ingested in schema.names or spec.ingested.startswith("_")):
        taken = spec.ingested in schema.names
        found = "the input has a column of that name" if taken else "names that begin with _ are reserved for ddflow"
        raise SpecError(Option("ingested", spec.ingested) + f" of {name!r}", found, "choose another name")
    _check_column_types(name, schema, spec, own)


def _check_column_types(name: str, schema: pa.Schema, spec: Any, own: set[str]) -> None:
    def refuse(option: str, column: str, why: str, fix: str, value: Any = ...) -> None:
        raise SpecError(
            Option(option, value) + f" of {name!r}", f"{column!r} is {schema.field(column).type}, {why}", fix
        )

    if nulls := [field.name for field in schema if pat.is_null(field.type)]:
        remedy = ErrorText("declare the types of their values, as in ", DeclareFix({nulls[0]: "string"}))
        raise SpecError(
            f"the schema of {name!r}", f"the columns {nulls} are of the type null, which has no values", remedy
        )
    whole = "use the integer column that counts arrivals"
    for option, columns, fits, why, fix in (
        (
            "key",
            spec.key,
            is_key_type,
            "which cannot be hashed as a key",
            "use numbers, text, binary, dates, UUIDs, ...",
        ),
        ("order_by", spec.order_by, is_flat_type, "which has no order", "use numbers, text, binary, dates, decimals"),
        ("seq", [spec.seq], pat.is_integer, "which is not an integer", whole),
        ("time", [spec.time], is_time_type, "which is not a time", "use int64, a timestamp or a date; cast it first"),
    ):
        for column in columns:
            if column is not None and not fits(schema.field(column).type):
                refuse(option, column, why, fix)
    if spec.expiry is not None:
        spec.expiry.fits(schema.field(spec.order_by[0]), f"expiry= of {name!r}")
    if spec.tie == "greatest":
        names = spec.value if spec.value is not None else [each for each in schema.names if each not in own]
        for column in names:
            dropped = column in (spec.time, spec.seq) and spec.value is None
            if spec.counts(column) and not dropped and not is_flat_type(schema.field(column).type):
                refuse(
                    "tie",
                    column,
                    "which has no order",
                    ErrorText("omit it with value=, or use another ", Option("tie")),
                    "greatest",
                )


def find_tombstone_value(of: str, schema: pa.Schema, tombstone: Any) -> pa.Scalar | None:
    """Return the value that marks a delete. Return None if ``tombstone`` is not a `Tombstone`, or has no value.

    Raises `SpecError`.
    """
    if not isinstance(tombstone, Tombstone):
        return None
    column, value = tombstone.column, tombstone.value
    kind = schema.field(column).type
    if value is None:
        if is_text(kind):
            raise SpecError(
                f"tombstone {column!r} of {of}",
                "it is a text column, but there is no value",
                ErrorText("name the text that deletes: ", TombstoneFix(column, "D")),
            )
        return None
    try:
        return pa.scalar(value, kind) if not isinstance(value, str) else pa.scalar(value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise SpecError(
            f"tombstone {column!r} of {of}",
            f"{value!r} is not a value of {kind} ({error})",
            "use a value of the column's type",
        ) from None

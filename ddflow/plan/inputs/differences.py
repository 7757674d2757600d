"""Declare an input of differences, and bind its spec to a schema.

Invariant: every binding can run. Rows have no key, so no event wins over another event. Equal rows count as one row
with a multiplicity, which may be negative. Only a row with a negative diff is a retraction. The diff of a row is
computed once, on admission, and then stored in a column of the event.

>>> schema = pa.schema({"city": pa.string(), "_change_type": pa.string(), "_commit_version": pa.int64()})
>>> bound = bind_differences("log", schema, Differences(delta_cdf))
>>> bound.row_schema.names
['city']
>>> rows = pa.record_batch({"city": ["Bern"] * 2, "_change_type": ["insert", "delete"], "_commit_version": [1, 2]})
>>> bound.add_event_columns(rows, rows.schema.names).to_pydict()
{'city': ['Bern', 'Bern'], '_diff': [1, -1]}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.names import DIFF, TIMES, check_column_name, check_column_names, parse_column_names
from ddflow.connectors.formats.base import BAD, Format
from ddflow.errors import ErrorText, ErrorTextPart, ExpressionError, NullKey, Option, SchemaMismatch, SpecError
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.plan.inputs.bind import BoundInput, check_columns, list_format_columns
from ddflow.plan.inputs.spec import Late
from ddflow.plan.inputs.watermark import Watermark, parse_watermark
from ddflow.plan.merge.checks import check_option_values

CHOICES: Final[dict[str, tuple[str, ...]]] = {"late": ("error", "drop", "advance"), "null_key": ("error", "drop")}
NONE: Final = pa.field(DIFF, pa.int64())
"""The event column that contains the diff.  An event with a null diff is bad."""


class ChangeFeed(NamedTuple):
    """A rule that turns rows of a change feed into differences. `FEEDS` lists all rules."""

    sql: str
    """The SQL that computes the diff from the feed's columns."""
    drops: tuple[str, ...]
    """Columns of the feed that are not part of the row."""


delta_cdf: Final = ChangeFeed(
    "case _change_type when 'insert' then 1 when 'update_postimage' then 1 "
    "when 'update_preimage' then -1 when 'delete' then -1 end",
    ("_change_type", "_commit_version", "_commit_timestamp"),
)
"""The change feed of a Delta Lake table.

The change type of each row determines its diff. The three columns of the feed are not part of rows.
"""
FEEDS: Final = {"delta_cdf": delta_cdf}
"""The known feeds, by their names in the JSON of plans."""


@dataclass(frozen=True)
class Differences:
    """The spec of an input of differences: see `ddflow.Flow.updates`.  Raises `SpecError`."""

    diff: str | ChangeFeed | None = None
    time: str | None = None
    keep: bool = False
    late: Late = "error"
    lateness: int | None = None
    null_key: Literal["error", "drop"] = "error"
    value: Sequence[str] | None = None
    key: Sequence[str] = ()
    """For an input of messages: the columns by which a delete message identifies its row."""
    ingested: str | None = None
    watermark: Mapping[str, str | int] | Watermark | None = None
    ahead: str | None = None

    # The options of upserts with their default values. So callers can treat this spec like an `Upsert`.
    order_by: ClassVar[tuple[str, ...]] = ()
    grouped: ClassVar[tuple[Any, ...]] = ()
    seq: ClassVar[None] = None
    delete: ClassVar[None] = None
    derived: ClassVar[tuple[Any, ...]] = ()
    expiry: ClassVar[None] = None
    merge: ClassVar[None] = None
    exclusive: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    order_free: ClassVar[bool] = True
    tie: ClassVar[str] = "error"
    stale: ClassVar[str] = "drop"
    versions: ClassVar[str] = "row"
    track: ClassVar[None] = None
    noop_ignore: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        asked = "an input of differences"
        if self.diff == "" or not (self.diff is None or isinstance(self.diff, str) or self.diff in FEEDS.values()):
            self._raise_spec_error(
                ErrorText(Option("diff"), f" is {self.diff!r:.200}"),
                "name a column as text, or pass SQL or dd.delta_cdf",
            )
        for name in ("time", "ingested"):
            if getattr(self, name) is not None:
                check_column_name(getattr(self, name), asked, name)
        if self.ingested is not None and self.diff is not None:
            found = ": a row with a negative diff does not have the time of the row that it removes"
            self._raise_spec_error(
                ErrorText(Option("ingested"), " with ", Option("diff"), found),
                ErrorText("omit ", Option("ingested"), ", or use flow.upserts"),
            )
        if self.value is not None:
            object.__setattr__(self, "value", parse_column_names(self.value, asked, "value"))
            check_column_names(self.value, f"value= of {asked}")
        object.__setattr__(self, "key", parse_column_names(self.key, asked, "key"))
        if not isinstance(self.keep, bool):
            self._raise_spec_error(Option("keep", self.keep), "use True or False")
        check_option_values(self, CHOICES, self._raise_spec_error)
        if isinstance(self.lateness, bool):
            self._raise_spec_error(
                Option("lateness", self.lateness), "use a whole number of the time column's unit, 0 or more"
            )
        object.__setattr__(self, "watermark", parse_watermark(self, self._raise_spec_error))

    def _raise_spec_error(self, found: str | ErrorTextPart, fix: str | ErrorTextPart) -> NoReturn:
        raise SpecError("an input of differences", found, fix)

    @property
    def holds_back(self) -> bool:
        """Whether the spec names a time column, so that the input is in hold-back mode."""
        return self.time is not None

    def to_json(self) -> str:
        """Write the spec as JSON for `from_json`.

        Fields are in order of declaration, and fields with default values are omitted.
        """
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        out = {name: value for name, value in given.items() if value != getattr(type(self), name)}
        if self.watermark is not None:
            out["watermark"] = dict(self.watermark)
        if isinstance(self.diff, ChangeFeed):
            out["diff"] = {"feed": next(name for name, each in FEEDS.items() if each == self.diff)}
        return json.dumps(out)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the JSON that ``to_json`` writes. Raises `SpecError` if the JSON is invalid."""
        try:
            given = json.loads(text)
            if isinstance(given.get("diff"), Mapping):
                given["diff"] = FEEDS[given["diff"]["feed"]]
            return cls(**given)
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError("differences from JSON", str(error), "pass the result of to_json()") from None


@dataclass(frozen=True, kw_only=True)
class BoundDifferences(BoundInput):
    """A spec of differences, bound by `bind_differences`.

    ``diff``: the expression that computes the diff, or None if all diffs are 1.
    """

    spec: Differences
    diff: Expression | None

    merging: ClassVar[None] = None
    tracked: ClassVar[list[str]] = [TIMES]
    """The stored columns that are compared to decide if a row changed."""
    replacement_key: ClassVar[None] = None
    unique: ClassVar[bool] = False

    @property
    def null_error(self) -> type[SchemaMismatch | NullKey]:
        """The class of the error for an event whose key is null or, on an input without a key, whose diff is null."""
        return NullKey if self.spec.key else SchemaMismatch

    @property
    def has_stored_rows(self) -> bool:
        """Whether the state stores the input's rows."""
        return self.spec.keep

    @property
    def key_schema(self) -> pa.Schema:
        """The columns that partition the rows: all columns of the row."""
        return self.row_schema

    @property
    def event_columns(self) -> list[str]:
        """The columns of the row."""
        return self.row_schema.names

    @cached_property
    def unstamped_event_schema(self) -> pa.Schema:
        """The columns of admitted events: the row's columns, the time, and the diff."""
        there = {*self.unstamped_row_schema.names, self.spec.time, BAD}
        return pa.schema([*(field for field in self.schema if field.name in there), NONE])

    def add_event_columns(self, events: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
        """Convert events to the columns of `unstamped_event_schema`. O(n).

        Raises `SchemaMismatch` for a diff that does not fit int64.
        """
        if self.diff is None:
            diffs = pa.array(np.ones(events.num_rows, np.int64))
        else:
            try:
                diffs = self.diff(events).cast(pa.int64())
            except pa.ArrowInvalid as error:
                remedy = "use an int64; nothing was ingested"
                raise SchemaMismatch(
                    f"rows for {self.name!r}", f"a diff overflows int64 ({error})", remedy, input=self.name
                ) from None
        columns = [events.column(name) for name in self.unstamped_event_schema.names[:-1]]
        return pa.RecordBatch.from_arrays([*columns, diffs], schema=self.unstamped_event_schema)

    @property
    def required_columns(self) -> list[str]:
        """The columns that every batch must have: the time, and the columns that the expression of the diff reads."""
        read = () if self.diff is None else self.diff.columns or ()
        return list(dict.fromkeys([*([self.spec.time] if self.spec.time else []), *read]))

    @property
    def non_null_columns(self) -> list[str]:
        """The columns of events that must not be null. An event with a null in one of these columns is bad."""
        return list(self.spec.key) if self.diff is None else [DIFF]

    @property
    def missing_part_name(self) -> str:
        """What a bad event lacks, as text for error messages."""
        given = self.spec.diff
        if self.spec.key:
            return f"the key {list(self.spec.key)}"
        return f"the diff {given.sql if isinstance(given, ChangeFeed) else given!r}"

    @property
    def formulas(self) -> dict[str, Expression]:
        """For each option that contains an expression: the expression, which is computed for events."""
        return {} if self.diff is None or self.spec.diff in self.schema.names else {"diff": self.diff}


def bind_differences(name: str, schema: pa.Schema, spec: Differences, format: Format | None = None) -> BoundDifferences:
    """Bind a spec to the schema of its input. ``format``: the format that added the last columns of the schema.

    O(columns). Raises `SpecError` or `ExpressionError`. The message names the column.
    """
    if not isinstance(name, str) or not name:
        raise SpecError("an input of a flow", f"its name is {name!r:.200}", "pass a name as text, and a schema")
    check_column_names(schema.names, f"the schema of {name!r}")
    if bool(spec.key) != (format is not None):
        found = (
            ErrorText("without ", Option("format"), " rows have no key")
            if spec.key
            else "messages identify rows by a key"
        )
        raise SpecError(
            ErrorText(Option("key"), f" of {name!r}"),
            found,
            ErrorText("omit ", Option("key"))
            if spec.key
            else ErrorText("pass ", Option("key"), ", as in ", Option("key", "id")),
        )
    check_columns(name, schema, spec, list_format_columns(format))
    if format is not None and spec.diff is not None:
        raise SpecError(
            ErrorText(Option("diff"), f" of {name!r}"),
            "each message is one row of a history",
            ErrorText("omit ", Option("diff")),
        )
    diff, drops = None, [spec.time, BAD] if format is not None else [spec.time]
    if spec.diff is not None:
        sql = spec.diff.sql if isinstance(spec.diff, ChangeFeed) else spec.diff
        drops += spec.diff.drops if isinstance(spec.diff, ChangeFeed) else [spec.diff]
        diff = _compile_diff(name, sql, schema)
    chosen = None if spec.value is None else {*spec.value, *spec.key, *list_format_columns(format)} - {BAD}
    wanted = [f for f in schema if (f.name not in drops if chosen is None else f.name in chosen)]
    if not wanted:
        raise SpecError(
            f"the schema of {name!r}", f"none of the columns {schema.names} is part of the row", "name some with value="
        )
    check_column_names([field.name for field in wanted] + [TIMES] * spec.keep, f"the rows of {name!r}")
    return BoundDifferences(
        name=name,
        schema=schema,
        spec=spec,
        unstamped_row_schema=pa.schema(wanted),
        time_type=schema.field(spec.time).type if spec.time else pa.int64(),
        diff=diff,
        format=format,
    )


def _compile_diff(name: str, sql: str, schema: pa.Schema) -> Expression:
    """Compile the diff of an input. Raises `ExpressionError` if the diff is not an integer."""
    what = f"diff of {name!r}"
    quoted = f"`{sql.replace('`', '``')}`" if sql in schema.names else sql
    made = compile_expression(quoted, schema, what=what)
    if not pat.is_integer(made.type):
        remedy = "use a column of integers, or SQL such as \"case op when '+' then 1 else -1 end\""
        raise ExpressionError(f"cannot compile {what}", f"{sql!r} is {made.type}", remedy)
    return made

"""Formats around others: dumps of kcat, whose lines have a message each, and the change feed of a table of Delta Lake.

Invariant: what a dump says of a message (key, topic, partition, offset, time) is what the format within is told. The
feed of Delta Lake has rows and no messages; of an update both rows are taken, the earlier one as a delete below the
later, so a changed key leaves nothing behind, in whichever order the two come.

>>> from ddflow.connectors.formats.base import decoded, events_schema
>>> from ddflow.connectors.formats.plain import PlainJson
>>> format, columns = Kcat(of=PlainJson()), pa.schema({"id": pa.int64(), "v": pa.string()})
>>> target = Target("'o'", columns, ("id",), (), True, events_schema(format, columns, True))
>>> line = '{"topic": "t", "partition": 0, "offset": 7, "key": "1", "payload": "{\\\\"v\\\\": \\\\"x\\\\"}"}'
>>> decoded(format, pa.table({"value": [line]}), target).rows.to_pylist()
[{'id': 1, 'v': 'x', '_position': 7, '_deleted': False}]
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.formats.base import BadMessages, Format, Target, Upserts
from ddflow.connectors.formats.cells import CellForm, cells_as
from ddflow.connectors.formats.examples import Examples
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.parse import TEXT, Bools, objects, parsed
from ddflow.connectors.formats.plain import misfit
from ddflow.connectors.formats.positions import POSITION, ROW, whole
from ddflow.connectors.formats.row_columns import Path
from ddflow.errors import SchemaMismatch, SpecError

_LINE: Final = dict.fromkeys(("topic", "partition", "offset", "key", "payload"), TEXT)
_USUAL: Final = r'"key"\s*:\s*("|null).*"payload"\s*:\s*("|null)'
"""As kcat writes lines: it is found early."""
_NESTED: Final = r'"(payload|key)"\s*:\s*[-0-9\[{]'
_FEED: Final = ("_change_type", "_commit_version", "_commit_timestamp")
_CHANGES: Final = ("insert", "update_postimage", "update_preimage", "delete")


@dataclass(frozen=True, repr=False, kw_only=True)
class Kcat(Format):
    """`ddflow.formats.kcat` makes it."""

    of: Format

    kind: ClassVar[str] = "kcat"

    def __post_init__(self) -> None:
        if not isinstance(self.of, Format) or isinstance(self.of, Kcat):
            raise SpecError("dd.formats.kcat", f"of= is {self.of!r:.99}", "give the format of the messages within")
        object.__setattr__(self, "on_bad", self.of.on_bad)
        object.__setattr__(self, "order", self.of.order)

    @property
    def leaves_out(self) -> bool:
        """Value of the inner format."""
        return self.of.leaves_out

    @property
    def of_tables(self) -> bool:
        """Value of the inner format."""
        return self.of.of_tables

    @property
    def asked(self) -> str | None:
        """Value of the inner format."""
        return self.of.asked

    def upserts(self, messages: Messages, target: Target, bad: BadMessages) -> Upserts:
        """See `Format`."""
        value = messages.value
        read, wrong = objects(value, _LINE, _is_nested(value))
        lines = {name: pc.struct_field(read, name) for name in _LINE}
        bad.mark(np.flatnonzero(wrong & ~bad.mask), "it is no JSON")
        lost = np.asarray(lines["offset"].is_null()) & ~bad.mask
        bad.mark(np.flatnonzero(lost), "it is no line of kcat -J: it has no 'offset'")
        inner = {"value": lines["payload"], "key": lines["key"], "topic": lines["topic"]}
        inner |= {name: whole(lines[name]) for name in ("partition", "offset")}
        good = np.flatnonzero(~bad.mask)
        table = pa.table(inner).take(pa.array(good))
        within, found = Messages(table, messages.what, messages.first), BadMessages(good.size)
        within.exact = np.broadcast_to(messages.exact, messages.rows)[good]
        made = self.of.upserts(within, target, found)
        for row, reason in found.reasons.items():
            bad.mark([good[row]], f"{within.place(row)}: {reason}")
        bad.narrow |= {int(good[row]): narrow for row, narrow in found.narrow.items()}
        at = good if made.at is None else good[made.at]
        cuts = tuple(each._replace(row=int(good[each.row])) for each in made.truncates)
        return made._replace(at=at, truncates=cuts)

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """See `Format`: of the messages within."""
        return self.of.columns(self._within(messages), known)

    def kinds(self, messages: Messages, names: Sequence[str]) -> dict[str, pa.DataType]:
        """See `Format`: of the messages within."""
        return self.of.kinds(self._within(messages), names)

    def _within(self, messages: Messages) -> Messages:
        payload, _ = parsed(messages.value, "json_extract_string(v, '$.payload')")
        return Messages(pa.table({"value": payload}), messages.what, messages.first)

    def examples(self, values: pa.Array) -> Examples | None:
        """See `Format`: of the messages within."""
        return self.of.examples(pc.struct_field(objects(values, _LINE)[0], "payload").drop_null())

    def to_json(self) -> dict[str, Any]:
        """See `Format`."""
        return {"kind": self.kind, "of": self.of.to_json()}

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"dd.formats.kcat({self.of!r})"


def _is_nested(lines: pa.Array) -> Bools:
    """Mark the lines with a key or payload that is no text: inside text, quotes have backslashes.  O(bytes)."""
    found: Bools = ~np.asarray(pc.fill_null(pc.match_substring_regex(lines, _USUAL), True))
    rows = np.flatnonzero(found)
    found[rows] = np.asarray(pc.match_substring_regex(lines.take(pa.array(rows)), _NESTED))
    return found


@dataclass(frozen=True, repr=False, kw_only=True)
class DeltaFeed(Format):
    """`ddflow.formats.delta_cdf` makes it."""

    kind: ClassVar[str] = "delta_cdf"
    order: ClassVar[Any] = ((POSITION, pa.int64()), (ROW, pa.int64()))
    of_rows: ClassVar[bool] = True
    row_path: ClassVar[Path] = ()

    def needs(self) -> None:
        """Do nothing: rows have types."""

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """See `Format`."""
        return {name: row for name, row in super().columns(messages, known).items() if name not in _FEED}

    def upserts(self, messages: Messages, target: Target, bad: BadMessages) -> Upserts:
        """See `Format`."""
        rows = messages.value
        names = [field.name for field in rows.type]
        if lost := [name for name in ("_change_type", "_commit_version", *target.key) if name not in names]:
            remedy = "read the table with its change feed: load_cdf, or readChangeFeed"
            raise SchemaMismatch(f"rows for {messages.what}", f"the columns {lost} are missing", remedy)
        change = pc.struct_field(rows, "_change_type").cast(pa.string())
        known = np.asarray(pc.is_in(change, pa.array(_CHANGES)))
        bad.mark(np.flatnonzero(~known), "its '_change_type' is none of the change feed's")
        deleted = ~np.asarray(pc.is_in(change, pa.array(_CHANGES[:2])))
        columns, at = {}, np.arange(messages.rows)
        for field in target.columns:
            if field.name not in names:
                columns[field.name] = pa.nulls(messages.rows, field.type)
                continue
            cells = pc.struct_field(rows, field.name)
            columns[field.name], wrong = cells_as(cells, field.type, CellForm())
            if wrong is not None:
                misfit(cells, np.flatnonzero(wrong), field, at, bad, lambda _: CellForm())
        version = pc.struct_field(rows, "_commit_version").cast(pa.int64())
        order = {POSITION: version, ROW: pa.array((~deleted).astype(np.int64))} if target.ordered else {}
        return Upserts(columns, deleted, order)

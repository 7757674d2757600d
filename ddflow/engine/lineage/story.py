"""Answers of `why`: the story of a key, and the origins of output rows, as tables and as text.

`Story` has the versions, the pending events and the log events of a key. `Origins` has the input rows behind output
rows.
Guarantees: an answer changes nothing. A notebook and a prompt show the text that `print` prints.

>>> row = {"what": "held", "_time": 3, "verdict": None, "seq": None, "id": 7}
>>> Story("people", {"id": 7}, pa.Table.from_pylist([row]), {"id": 7}, ("id",), 0, "")
the key (id=7) of 'people' holds (id=7)
  from 3: (id=7)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ddflow.columns.names import DIFF, TIME
from ddflow.columns.rows import row_values
from ddflow.connectors.formats.base import BAD
from ddflow.connectors.formats.messages import POSITION, ROW
from ddflow.engine.run.source_reader import SourceFeed
from ddflow.terminal import format_count, format_row, html_text
from ddflow.time import NEVER, format_time

HELD: Final = ("deleted", "held")
"""The name of a version in a story, by whether it is live."""
ABSENT: Final = "absent"
"""The name and the verdict of a deletion by full contents without the key."""
PART: Final = "_part"
"""The column with the number of an event's part of the log, from 1."""
LISTED: Final = 20
"""The number of a table's rows that the text lists."""
LOST: Final = ("stale", "tie_lost", "superseded")
"""The verdicts of events that lost against another event."""


class TextAnswer:
    """An answer that a prompt and a notebook show as `print` does."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Render the text for a notebook."""
        return html_text(str(self))


@dataclass(frozen=True, repr=False)
class Story(TextAnswer):
    """The story of one key. ``engine.why(input, key)`` makes it; it prints as text.

    Attributes
    ----------
    input : str
        The input.
    key : mapping
        The key, by column.
    table : pyarrow.Table
        A row for each version ("held", "deleted"), each pending event ("pending"), each event of the log ("event"), and
        each deletion by full contents of the log without the key ("absent"). Its columns are ``what``, ``_time``, then
        ``verdict`` and ``seq`` of events, then the input's columns. The ``winner_`` columns have the order that the key
        holds from then on. If the times of steps are days or moments, events have no time, and ``_part`` is the number
        of their part of the log, from 1.
    row : mapping or None
        The current row of the key; None for no row.
    columns : tuple of str
        The columns of a row.
    settled : int
        The number of versions with a time up to ``since``.
    replayed : str
        The meaning of the times of events, if there is a log.
    fed : str
        How the input was fed, if not by events alone.
    scopes : tuple of str or None
        The scopes of the full contents without the key, in their order.
    source : SourceFeed or None
        The source that feeds the input, and its position; it prints as a line.
    """

    input: str
    key: Mapping[str, Any]
    table: pa.Table
    row: Mapping[str, Any] | None
    columns: tuple[str, ...]
    settled: int
    replayed: str
    fed: str = ""
    scopes: tuple[str | None, ...] = ()
    source: SourceFeed | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert the story to plain values; ``story`` has the rows of the table."""
        return {
            "input": self.input,
            "key": dict(self.key),
            "row": None if self.row is None else dict(self.row),
            "replayed": self.replayed,
            "fed": self.fed,
            "source": None if self.source is None else self.source.to_dict(),
            "story": _convert_rows_to_dicts(self.table),
        }

    def __str__(self) -> str:
        now = "holds nothing" if self.row is None else f"holds {format_row(self.row)}"
        lines = [f"the key {format_row(self.key)} of {self.input!r} {now}"]
        rows = _convert_rows_to_dicts(self.table)
        for i, row in enumerate(rows):
            if row["what"] in HELD:
                said = self._format_row(row) if row["what"] == "held" else "deleted"
                when = "  earlier, from" if i < self.settled - 1 else "  from"
                settled = " or before" if i == self.settled - 1 else ""
                lines.append(f"{when} {row[TIME]}{settled}: {said}{self._format_order(row, ', by order ')}")
        lines += [f"  pending, for {row[TIME]}: {self._format_row(row)}" for row in rows if row["what"] == "pending"]
        if self.source is not None:
            lines.append(f"its input is fed by {self.source}")
        if self.fed:
            lines.append(f"its input was fed {self.fed}; full contents delete what they do not name")
        if self.replayed:
            events = sum(row["what"] == "event" for row in rows)
            lines.append(f"its {format_count(events, 'event')} in the log ({self.replayed})")
        scopes = iter(self.scopes)
        for row in rows:
            if row["what"] == "event":
                lost = self._format_order(row, "; the key held order ") if row["verdict"] in LOST else ""
                lines.append(f"  {_describe_replay_time(row)}: {row['verdict']} {self._format_row(row)}{lost}")
            elif row["what"] == ABSENT:
                scope = next(scopes)
                whole = "full contents" if scope is None else f"full contents of the scope {scope!r}"
                by = self._format_order(row, ", by order ")
                lines.append(f"  {_describe_replay_time(row)}: deleted: {whole} do not name it{by}")
        return "\n".join(lines)

    def _format_row(self, row: Mapping[str, Any]) -> str:
        names = list(self.columns)
        if row["what"] != "held":
            names = [name for name in list(row)[4:] if name != PART and not name.startswith("winner_")]
        if POSITION in row:  # messages, with internal columns of their decoder
            names = [name for name in names if name not in (ROW, BAD)]
        return format_row({name: row[name] for name in names})

    def _format_order(self, row: Mapping[str, Any], words: str) -> str:
        order = {name[7:]: value for name, value in row.items() if name.startswith("winner_")}
        if all(value is None for value in order.values()):
            return ""
        return f"{words}{format_row(order if self.source is None else self.source.describe_order(order))}"


def _describe_replay_time(row: Mapping[str, Any]) -> str:
    """Describe the place of an event in the replay: a time, or a part of its log."""
    return f"at {row[TIME]}" if row.get(PART) is None else f"in part {row[PART]}"


@dataclass(frozen=True, repr=False)
class Origins(TextAnswer):
    """The input rows behind rows of an output. ``engine.why(output, {column: value})`` makes it; it prints as text.

    Attributes
    ----------
    output : str
        The output.
    as_of : int
        The requested closed time, an int64.
    shown : pyarrow.Table
        The rows of the output with the requested values, and ``_diff``.
    rows : mapping of str to pyarrow.Table
        By input, the rows behind them, and ``_diff``.
    stories : tuple of Story
        The stories of the keys of these rows, at most 100 for each input, if there is a log.
    time_type : pyarrow.DataType
        The type of times in the text.
    sources : mapping of str to SourceFeed
        By input, the source that feeds it, and its position. Other inputs are left out.
    near : mapping of str to pyarrow.Table
        Rows with the requested values, and ``_diff``, by input that has these columns. Filled if no output row is
        shown or, with ``between=``, no change of an input.
    after : int or None
        With ``between=``, the closed time after which changes count. ``shown``, ``rows`` and ``near`` then have
        changes, with a negative ``_diff`` for removed rows.
    """

    output: str
    as_of: int
    shown: pa.Table
    rows: Mapping[str, pa.Table]
    stories: tuple[Story, ...] = ()
    time_type: pa.DataType = field(default_factory=pa.int64)
    sources: Mapping[str, SourceFeed] = field(default_factory=dict)
    near: Mapping[str, pa.Table] = field(default_factory=dict)
    after: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert the origins to plain values."""
        return {
            "output": self.output,
            "as_of": self.as_of,
            "after": self.after,
            "shown": _convert_rows_to_dicts(self.shown),
            "rows": {name: _convert_rows_to_dicts(table) for name, table in self.rows.items()},
            "sources": {name: source.to_dict() for name, source in self.sources.items()},
            "stories": [story.to_dict() for story in self.stories],
            "near": {name: _convert_rows_to_dicts(table) for name, table in self.near.items()},
        }

    def __str__(self) -> str:
        if self.after is not None:
            return "\n".join(self._describe_changes(self.after))
        when = "before the first step"
        if self.as_of != NEVER:
            when = f"as of {format_time(self.as_of, self.time_type)}"
        if not self.shown.num_rows:
            return "\n".join([f"no row of {self.output!r} has these values {when}", *self._describe_input_matches()])
        lines = [f"{format_count(self.shown.num_rows, 'row')} of {self.output!r} {when}", *_format_rows(self.shown)]
        made = "is made of" if self.shown.num_rows == 1 else "are made of"
        for i, (name, table) in enumerate(self.rows.items()):
            lines.append(f"{'and' if i else made} {format_count(table.num_rows, 'row')} of {name!r}")
            lines += _format_rows(table)
        lines += [f"{name!r} is fed by {source}" for name, source in self.sources.items()]
        return "\n".join([*lines, *map(str, self.stories)])

    def _describe_changes(self, after: int) -> Iterator[str]:
        """Describe the added and the deleted rows."""
        ends = ("the beginning" if t == NEVER else format_time(t, self.time_type) for t in (after, self.as_of))
        times = " up to ".join(ends)
        yield f"{format_count(self.shown.num_rows, 'change')} of {self.output!r} with these values after {times}"
        yield from _format_rows(self.shown, signed=True)
        for what, tables in (("", self.rows), (" with these values", self.near)):
            for name, table in tables.items():
                if table.num_rows:
                    yield f"{format_count(table.num_rows, 'change')} of the input {name!r}{what}"
                    yield from _format_rows(table, signed=True)
        yield from (f"{name!r} is fed by {source}" for name, source in self.sources.items())

    def _describe_input_matches(self) -> Iterator[str]:
        """Describe input rows with these values if the output has none, and name the next command."""
        for name, table in self.near.items():
            verb = "has" if table.num_rows == 1 else "have"
            yield f"{format_count(table.num_rows, 'row')} of input {name!r} {verb} them"
            yield from _format_rows(table)
            if table.num_rows:
                yield f"  a filter or a join behind {name!r} leaves out what is not shown: explain({self.output!r})"
            else:
                yield f"  why({name!r}, key) tells what a key of it held"


def _convert_rows_to_dicts(table: pa.Table) -> list[dict[str, Any]]:
    return [row_values(table, i) for i in range(table.num_rows)]


def _format_rows(table: pa.Table, *, signed: bool = False) -> list[str]:
    """Format rows as text, with a count for rows that occur more than once. ``signed``: whether they are changes."""
    most = table.slice(0, LISTED)
    times = most.column(DIFF).to_pylist()
    shown = map(format_row, _convert_rows_to_dicts(most.drop_columns([DIFF])))
    more = [f"  and {table.num_rows - LISTED:,} more, which .rows has"] if table.num_rows > LISTED else []
    signs = ["+ " if n > 0 else "- " for n in times] if signed else [""] * len(times)
    counts = [abs(n) for n in times] if signed else times
    told = zip(signs, shown, counts, strict=True)
    return [*(f"  {sign}{row}{'' if n == 1 else f', {n} times'}" for sign, row, n in told), *more]

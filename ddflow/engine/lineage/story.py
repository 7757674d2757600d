"""Define the answers of `why`: the story of a key, and the input rows behind output rows, as tables and as text.

`Story` has the versions, the pending events and the log events of a key. `Origins` has the input rows behind output
rows. A notebook and a Python prompt show the same text as `print`.

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
"""The two names of versions in a story. The first name is for a deletion, and the second name for a live version."""
ABSENT: Final = "absent"
"""The name and the verdict of a deletion that happened because full contents of the log lacked the key."""
PART: Final = "_part"
"""The name of the column that has the number of the log part of each event. Numbers start at 1."""
LISTED: Final = 20
"""The number of rows of a table that the text lists."""
LOST: Final = ("stale", "tie_lost", "superseded")
"""The verdicts of events that lost against another event of their key."""


class TextAnswer:
    """An answer that a Python prompt and a notebook show as text, in the same way as `print`."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Render the text of the answer for a notebook."""
        return html_text(str(self))


@dataclass(frozen=True, repr=False)
class Story(TextAnswer):
    """The story of one key. ``engine.why(input, key)`` returns it. `print` shows a story as text.

    Attributes
    ----------
    input : str
        The input.
    key : mapping
        The key, by column.
    table : pyarrow.Table
        A row for each version ("held", "deleted"), each pending event ("pending"), each event of the log ("event"), and
        each deletion because full contents of the log lacked the key ("absent"). The columns are ``what``, ``_time``,
        then ``verdict`` and ``seq`` of events, then the input's columns. The ``winner_`` columns have the order that
        the key holds after the row. If the times of steps are days or timestamps, log events have no time. ``_part``
        then is the number of their part of the log, from 1.
    row : mapping or None
        The current row of the key; None if there is no row.
    columns : tuple of str
        The columns of a row.
    settled : int
        The number of versions with a time up to ``since``.
    replayed : str
        The meaning of the times of log events; empty without a log.
    fed : str
        The calls that fed the input; empty if all were events.
    scopes : tuple of str or None
        The scope of each full contents that lacked the key, in the order of the log.
    source : SourceFeed or None
        The source that feeds the input, with its position.
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
        """Convert the story to plain Python values. The value of ``"story"`` is a list with the rows of the table."""
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
            lines.append(f"its input was fed {self.fed}; full contents delete the keys that they lack")
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
                lines.append(f"  {_describe_replay_time(row)}: deleted: {whole} lack it{by}")
        return "\n".join(lines)

    def _format_row(self, row: Mapping[str, Any]) -> str:
        names = list(self.columns)
        if row["what"] != "held":
            names = [name for name in list(row)[4:] if name != PART and not name.startswith("winner_")]
        if POSITION in row:  # messages, whose decoder adds internal columns
            names = [name for name in names if name not in (ROW, BAD)]
        return format_row({name: row[name] for name in names})

    def _format_order(self, row: Mapping[str, Any], words: str) -> str:
        order = {name[7:]: value for name, value in row.items() if name.startswith("winner_")}
        if all(value is None for value in order.values()):
            return ""
        return f"{words}{format_row(order if self.source is None else self.source.describe_order(order))}"


def _describe_replay_time(row: Mapping[str, Any]) -> str:
    """Describe the place of an event in the replay by a time, or by the number of the event's log part."""
    return f"at {row[TIME]}" if row.get(PART) is None else f"in part {row[PART]}"


@dataclass(frozen=True, repr=False)
class Origins(TextAnswer):
    """The input rows from which rows of an output were made. `print` shows them as text.

    ``engine.why(output, {column: value})`` returns them.

    Attributes
    ----------
    output : str
        The output.
    as_of : int
        The requested closed time, an int64.
    shown : pyarrow.Table
        The rows of the output with the requested values, and ``_diff``.
    rows : mapping of str to pyarrow.Table
        For each input, the rows behind the shown rows, and ``_diff``.
    stories : tuple of Story
        If there is a log, the stories of the keys of the rows in ``rows``, at most 100 for each input.
    time_type : pyarrow.DataType
        The type of times in the text.
    sources : mapping of str to SourceFeed
        For each input with a source, the source and its position.
    near : mapping of str to pyarrow.Table
        For each input that has the requested columns, its rows with the requested values, and ``_diff``. Empty unless
        no output row is shown or, with ``between=``, no change of an input.
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
        """Convert the answer to plain Python values."""
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
        """Yield text lines about added and deleted rows of the output and of its inputs."""
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
        """Yield text lines about the input rows with the requested values, and about the next command to run."""
        for name, table in self.near.items():
            verb = "has" if table.num_rows == 1 else "have"
            yield f"{format_count(table.num_rows, 'row')} of input {name!r} {verb} these values"
            yield from _format_rows(table)
            if table.num_rows:
                yield f"  a filter or a join after {name!r} removes the missing rows: explain({self.output!r})"
            else:
                yield f"  why({name!r}, key) shows the history of a key"


def _convert_rows_to_dicts(table: pa.Table) -> list[dict[str, Any]]:
    return [row_values(table, i) for i in range(table.num_rows)]


def _format_rows(table: pa.Table, *, signed: bool = False) -> list[str]:
    """Format rows as text. If a row occurs more than once, show its count. ``signed``: whether the rows are changes."""
    most = table.slice(0, LISTED)
    times = most.column(DIFF).to_pylist()
    shown = map(format_row, _convert_rows_to_dicts(most.drop_columns([DIFF])))
    more = [f"  and {table.num_rows - LISTED:,} more in .rows"] if table.num_rows > LISTED else []
    signs = ["+ " if n > 0 else "- " for n in times] if signed else [""] * len(times)
    counts = [abs(n) for n in times] if signed else times
    told = zip(signs, shown, counts, strict=True)
    return [*(f"  {sign}{row}{'' if n == 1 else f', {n} times'}" for sign, row, n in told), *more]

"""The options that ``diff`` and ``count`` share: how each is written, and what it means in one line.

Invariant: an option is described here once, for both verbs, and means what the field of `ddflow.Upsert` of its name
means; `Ask` holds what was given, as it was given.  Nothing is interpreted here.

>>> Ask(inputs=[], key=["id"], time="at").held_back
True
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

_WINS, _GOES = "Which event of a key wins", "What deletes, what is no change"
_MERGES = "How partial rows are merged"
_OUT, _TIME, _ROWS, _STATE = "Output", "Time", "Rows", "State"

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        show_default=False,
        help="Files (.parquet, .csv, .jsonl, .ndjson, .arrow, .feather, .arrows; text also .gz), or folders of them.",
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(
        "--scope",
        metavar="EXPR",
        show_default=False,
        rich_help_panel=_GOES,
        help="The files hold only the rows for which this SQL condition is true: others stay as they are.",
    ),
]
Key = Annotated[
    list[str],
    typer.Option(
        "--key",
        "-k",
        metavar="COLUMNS",
        show_default=False,
        rich_help_panel=_WINS,
        help="The columns that identify a row: id, or id,region.",
    ),
]
OrderBy = Annotated[
    list[str] | None,
    typer.Option(
        "--order-by",
        metavar="COLUMNS",
        show_default=False,
        rich_help_panel=_WINS,
        help="The greatest of these wins, left to right, null smallest. Without: the last to arrive.",
    ),
]
Tie = Annotated[
    str,
    typer.Option(
        "--tie",
        metavar="last|first|greatest|error",
        rich_help_panel=_WINS,
        help="Which of two events of equal order wins.",
    ),
]
Seq = Annotated[
    str | None,
    typer.Option(
        "--seq",
        metavar="COLUMN",
        show_default=False,
        rich_help_panel=_WINS,
        help="The integer column that counts arrivals, where the rows' own order is not it.",
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="COLUMN",
        show_default=False,
        rich_help_panel=_TIME,
        help="Hold-back mode, by this column: int64, a timestamp or a date.",
    ),
]
Lateness = Annotated[
    str | None,
    typer.Option(
        "--lateness",
        metavar="N",
        show_default=False,
        rich_help_panel=_TIME,
        help="Close times this far behind the greatest seen: a number in the column's unit, or 10s, 5min, 2h, "
        "1d. 0 for input sorted by time. Without: everything waits for the end.",
    ),
]
Late = Annotated[
    str,
    typer.Option(
        "--late",
        metavar="error|drop|advance",
        rich_help_panel=_TIME,
        help="What becomes of an event whose time is closed already.",
    ),
]
Stale = Annotated[
    str,
    typer.Option(
        "--stale",
        metavar="drop|mark|side",
        rich_help_panel=_WINS,
        help="An event older than what its key holds: counted; or every event marked, or the stale ones, in a "
        "file of their own.",
    ),
]
StaleOutput = Annotated[
    Path | None,
    typer.Option(
        "--stale-output",
        metavar="FILE",
        show_default=False,
        rich_help_panel=_OUT,
        help="Where --stale mark or side writes those events.",
    ),
]
Tombstone = Annotated[
    str | None,
    typer.Option(
        "--tombstone",
        metavar="COLUMN[=VALUE]",
        show_default=False,
        rich_help_panel=_GOES,
        help="An event deletes where the column has this value (op=D), is true, or is not null.",
    ),
]
Delete = Annotated[
    str | None,
    typer.Option(
        "--delete",
        metavar="EXPR",
        show_default=False,
        rich_help_panel=_GOES,
        help="An event deletes where this SQL condition is true.",
    ),
]
NullKey = Annotated[
    str,
    typer.Option(
        "--null-key",
        metavar="error|drop|keep",
        rich_help_panel=_GOES,
        help="What becomes of an event whose key is null.",
    ),
]
Merge = Annotated[
    list[str] | None,
    typer.Option(
        "--merge",
        metavar="COLUMN=STRATEGY",
        show_default=False,
        rich_help_panel=_MERGES,
        help="Rows are partial: visits=sum, tags=union; default=last for the others; or just first_row.",
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="ORDER=COLUMNS",
        show_default=False,
        rich_help_panel=_MERGES,
        help="These columns are decided by an order of their own: paid_at=amount,currency.",
    ),
]
Versions = Annotated[
    str,
    typer.Option(
        "--versions",
        metavar="row|cell",
        rich_help_panel=_MERGES,
        help="One order for the row, or one for each cell: then a late partial row fills what is older.",
    ),
]
Derive = Annotated[
    list[str] | None,
    typer.Option(
        "--derive",
        metavar="COLUMN=EXPRESSION",
        show_default=False,
        rich_help_panel=_MERGES,
        help="A column that is computed of the merged row: 'total=score + bonus'.",
    ),
]
NoopIgnore = Annotated[
    list[str] | None,
    typer.Option(
        "--noop-ignore",
        metavar="COLUMNS",
        show_default=False,
        rich_help_panel=_GOES,
        help="Columns whose change alone is no change.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="COLUMNS",
        show_default=False,
        rich_help_panel=_GOES,
        help="The only columns whose change is a change; the opposite of --noop-ignore.",
    ),
]
Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="EXPR",
        show_default=False,
        rich_help_panel=_ROWS,
        help="Keep the rows for which this SQL condition is true. Several must all hold.",
    ),
]
Project = Annotated[
    list[str] | None,
    typer.Option(
        "--project",
        metavar="COLUMNS|NAME=EXPR",
        show_default=False,
        rich_help_panel=_ROWS,
        help="Keep these columns: city,amount; or compute one: 'total=price * quantity'. May be repeated.",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        metavar="COLUMN=TYPE,...",
        show_default=False,
        rich_help_panel=_ROWS,
        help="Types of input columns where the first file's will not do: zip=string,total=decimal(12,2).",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        show_default=False,
        rich_help_panel=_OUT,
        help="The file to write, of the kind its extension says; - for JSON lines on stdout. Without: the "
        "first rows as a table on a terminal, JSON lines into a pipe.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", rich_help_panel=_OUT, help="Replace output files that exist.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=_OUT,
        help="Say what was done as one JSON object on stdout, for machines; needs -o FILE.",
    ),
]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="FOLDER",
        show_default=False,
        rich_help_panel=_STATE,
        help="Continue the state in this folder, or s3://bucket/prefix; made if it is missing. Each file is "
        "its next epoch.",
    ),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        metavar="N",
        min=1,
        show_default=False,
        rich_help_panel=_STATE,
        help="The first file is this epoch of the state. One that was committed gives the rows it gave, so "
        "that the same line can be run again after a crash.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        show_default=False,
        rich_help_panel=_STATE,
        help="A budget for the state, such as 512MB; what does not fit stays in its files.",
    ),
]
Trust = Annotated[
    str,
    typer.Option(
        "--trust",
        metavar="owner|group",
        rich_help_panel=_STATE,
        help="group accepts a folder of another user, or that others can write to.",
    ),
]
By = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COLUMNS",
        show_default=False,
        rich_help_panel=_ROWS,
        help="The groups to count by: city, or city,year. Without: one count of all rows.",
    ),
]
Name = Annotated[str, typer.Option("--name", rich_help_panel=_ROWS, help="What the column of counts is called.")]
Net = Annotated[
    bool, typer.Option("--net", rich_help_panel=_OUT, help="Write the final counts instead of their differences.")
]


@dataclass(frozen=True)
class Ask:
    """What a command line asks for.  The fields are those of the verbs; ``counts`` says that it is ``count``,
    ``whole`` that it is ``replace``."""

    inputs: list[str]
    key: list[str]
    order_by: list[str] | None = None
    tie: str = "last"
    seq: str | None = None
    stale: str = "drop"
    time: str | None = None
    lateness: str | None = None
    late: str = "error"
    tombstone: str | None = None
    delete: str | None = None
    null_key: str = "error"
    noop_ignore: list[str] | None = None
    track: list[str] | None = None
    merge: list[str] | None = None
    group: list[str] | None = None
    versions: str = "row"
    derive: list[str] | None = None
    filter_: list[str] | None = None
    project: list[str] | None = None
    types: list[str] | None = None
    output: str | None = None
    stale_output: Path | None = None
    overwrite: bool = False
    as_json: bool = False
    state: str | None = None
    epoch: int | None = None
    memory: str | None = None
    trust: str = "owner"
    by: list[str] | None = None
    name: str = "count"
    net: bool = False
    counts: bool = field(default=False, kw_only=True)
    whole: bool = field(default=False, kw_only=True)
    scope: str | None = field(default=None, kw_only=True)

    @property
    def held_back(self) -> bool:
        """Whether it names a time column."""
        return self.time is not None

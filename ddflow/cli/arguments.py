"""Declare the arguments and options that verbs share: states, logs, inputs and outputs.

`VerbOptions` holds the options of a verb that reads files. `with_options` adds these options to a verb's function.
Annotated types such as `State` each declare one option or argument.

Guarantees: an option has the same name, meaning and help text in all verbs.
Limits: this file only declares options; `ddflow/cli/plan.py` interprets them.

>>> Trust.__metadata__[0].metavar
'owner|group'
"""

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

_WINS, _GOES, _MERGES = "Which event of a key wins", "What deletes, what is not a change", "How partial rows are merged"
_OUT, _TIME, _ROWS, _STATE, _FILES = "Output", "Time", "Rows", "State", "Files"

State = Annotated[
    str, typer.Argument(metavar="STATE", show_default=False, help="The folder of a state, or s3://bucket/prefix.")
]
Input = Annotated[
    str | None,
    typer.Option("--input", metavar="NAME", show_default=False, help="The input to use, if the state has several."),
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        show_default=False,
        help="Use the contents as of this time, which the state must still keep.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        show_default=False,
        rich_help_panel="State",
        help="The time of the file: a day (2026-11-26), a timestamp (2026-11-26T12:00Z) or a number. A run with --at "
        "takes one file. The first run sets the type of the state's times. Without --at, numbers count up; a state "
        "with days or timestamps requires it.",
    ),
]
Full = Annotated[
    list[str] | None,
    typer.Option(
        "--full",
        metavar="FILE",
        show_default=False,
        help="A file of the log that holds full contents, like a file of `ddflow replace`: its name, its folder, or a "
        "pattern such as 'full-*.csv'. May be repeated.",
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(
        "--scope",
        metavar="EXPR",
        show_default=False,
        help="The scope of the files that --full names. Without it, the state's record gives the scope of each file.",
    ),
]
Rewriting = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        show_default=False,
        help="The memory budget, such as 512MB. Without it, about half a million rows are rewritten at a time.",
    ),
]
"""The memory budget of a verb that rewrites a state."""
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        metavar="COLUMN=TYPE,...",
        show_default=False,
        rich_help_panel=_FILES,
        help="Types of columns, for every file that has them: zip=string,total=decimal(12,2).",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        show_default=False,
        help="The output file; its extension sets the format. - prints JSON lines on stdout. Without it, a terminal "
        "gets the first rows as a table, and a pipe gets JSON lines.",
    ),
]
Trust = Annotated[
    str,
    typer.Option(
        "--trust",
        metavar="owner|group",
        help="group also accepts a folder of another user, or one that others can write to.",
    ),
]

OF_FULL_FILES = frozenset({"scope", "allow_empty", "max_absent"})
"""Options of ``replace`` and ``count --full``.

Each of the next sets holds the names of related options: of counts, of states, of merges, of events.
"""
OF_COUNTS = frozenset({"by", "name", "net"})
OF_STATE = frozenset({"at", "epoch", "retain", "memory", "trust"})
OF_MERGES = frozenset({"merge", "group", "versions", "derive"})
OF_EVENTS = OF_MERGES | {"order_by", "tie", "seq", "stale", "stale_output", "time", "lateness", "late"}
OF_MESSAGES = frozenset({"on_bad", "bad_output"})
OF_TEXT = frozenset({"format", "delimiter", "null", "encoding", "decimal", "dates", "thousands"})
"""Options of text files, shared by logs and tables."""


def _make_option(flags: str, metavar: str | None, panel: str, text: str, least: int | None = None) -> Any:
    return typer.Option(*flags.split("/"), metavar=metavar, rich_help_panel=panel, help=text, min=least)


@dataclass(frozen=True, kw_only=True)
class VerbOptions:
    """The values of the shared options of a command line.

    ``counts``: True if the verb counts rows. ``whole``: True if each file has full contents.

    >>> VerbOptions(inputs=[], key=["id"], time="at").holds_back
    True
    >>> @with_options(without=OF_COUNTS | OF_FULL_FILES)
    ... def verb(ask: VerbOptions, dry_run: bool = False) -> None:
    ...     print(ask.key, ask.inputs, dry_run)
    >>> verb(inputs=["a.csv"], key=["id"])
    ['id'] ['a.csv'] False
    >>> list(inspect.signature(verb).parameters)[:5]
    ['dry_run', 'inputs', 'key', 'order_by', 'tie']
    """

    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Files (.parquet, .csv, .tsv, .tab, .jsonl, .ndjson, .json, .arrow, .feather, .arrows; text also with "
            ".gz or .zst after it), folders of files, patterns ('days/*.csv'), s3:// addresses of any of these, or - "
            "for standard input.",
        ),
    ] = field(default_factory=list)
    key: Annotated[
        list[str], _make_option("--key/-k", "COLUMNS", _WINS, "The columns that identify a row: id, or id,region.")
    ] = field(default_factory=list)
    scope: Annotated[
        str | None,
        _make_option(
            "--scope",
            "EXPR",
            _GOES,
            "The files hold all rows for which this SQL condition is true. Rows outside this scope stay unchanged.",
        ),
    ] = None
    allow_empty: Annotated[
        bool,
        _make_option(
            "--allow-empty", None, _GOES, "Accept a file without rows, which deletes every key (in the scope)."
        ),
    ] = False
    max_absent: Annotated[
        str | None,
        _make_option(
            "--max-absent",
            "N|P%",
            _GOES,
            "Stop at a file that would delete more keys than this: a number (100), or a share of all keys (50%).",
        ),
    ] = None
    by: Annotated[
        list[str] | None,
        _make_option(
            "--by", "COLUMNS", _ROWS, "The columns to group by: city, or city,year. Without it, one count of all rows."
        ),
    ] = None
    name: Annotated[str, _make_option("--name", "NAME", _ROWS, "The name of the column of counts.")] = "count"
    net: Annotated[bool, _make_option("--net", None, _OUT, "Write the final counts instead of their differences.")] = (
        False
    )
    order_by: Annotated[
        list[str] | None,
        _make_option(
            "--order-by",
            "COLUMNS",
            _WINS,
            "The event with the greatest values in these columns wins, compared left to right, null smallest. Without "
            "it, the last event to arrive wins.",
        ),
    ] = None
    tie: Annotated[
        str,
        _make_option(
            "--tie",
            "last|first|greatest|error",
            _WINS,
            "Which of two events of equal order wins: the last or first to arrive, or the greatest row. error refuses "
            "them.",
        ),
    ] = "last"
    seq: Annotated[
        str | None,
        _make_option(
            "--seq", "COLUMN", _WINS, "The integer column that counts arrivals, if the order of the rows does not."
        ),
    ] = None
    stale: Annotated[
        str,
        _make_option(
            "--stale",
            "drop|mark|side",
            _WINS,
            "What to do with an event older than the row of its key. drop only counts it. mark writes all events to "
            "--stale-output, with a column _stale; side writes only the stale events.",
        ),
    ] = "drop"
    time: Annotated[
        str | None,
        _make_option("--time", "COLUMN", _TIME, "Use hold-back mode by this column: int64, a timestamp or a date."),
    ] = None
    lateness: Annotated[
        str | None,
        _make_option(
            "--lateness",
            "N",
            _TIME,
            "Close times this far below the greatest time seen: a number in the column's unit, or 10s, 5min, 2h, 1d. "
            "Use 0 for input sorted by time. Without it, all events wait for the end of the input.",
        ),
    ] = None
    late: Annotated[
        str,
        _make_option(
            "--late",
            "error|drop|advance",
            _TIME,
            "What to do with an event whose time is already closed: stop, only count it, or set its time to the "
            "frontier.",
        ),
    ] = "error"
    tombstone: Annotated[
        str | None,
        _make_option(
            "--tombstone",
            "COLUMN[=VALUE]",
            _GOES,
            "An event deletes its key if the column has this value (op=D). Without a value: if it is true, or not "
            "null.",
        ),
    ] = None
    delete: Annotated[
        str | None, _make_option("--delete", "EXPR", _GOES, "An event deletes its key if this SQL condition is true.")
    ] = None
    null_key: Annotated[
        str,
        _make_option(
            "--null-key",
            "error|drop|keep",
            _GOES,
            "What to do with a row whose key is null: refuse it, drop it, or keep it like any other row.",
        ),
    ] = "error"
    noop_ignore: Annotated[
        list[str] | None,
        _make_option("--noop-ignore", "COLUMNS", _GOES, "A row that differs only in these columns is not a change."),
    ] = None
    track: Annotated[
        list[str] | None,
        _make_option(
            "--track",
            "COLUMNS",
            _GOES,
            "Only a row that differs in these columns is a change; the opposite of --noop-ignore.",
        ),
    ] = None
    merge: Annotated[
        list[str] | None,
        _make_option(
            "--merge",
            "COLUMN=STRATEGY",
            _MERGES,
            "Merge partial rows, by a strategy for each column: visits=sum, tags=union; default=last for all other "
            "columns; or first_row alone.",
        ),
    ] = None
    group: Annotated[
        list[str] | None,
        _make_option(
            "--group",
            "ORDER=COLUMNS",
            _MERGES,
            "Columns that have their own order column, which decides them: paid_at=amount,currency.",
        ),
    ] = None
    versions: Annotated[
        str,
        _make_option(
            "--versions",
            "row|cell",
            _MERGES,
            "Keep one order for each row, or one for each cell, so that a late partial row fills the older cells.",
        ),
    ] = "row"
    derive: Annotated[
        list[str] | None,
        _make_option(
            "--derive",
            "COLUMN=EXPRESSION",
            _MERGES,
            "Compute a column from the merged row: 'total=score + bonus'.",
        ),
    ] = None
    filter_: Annotated[
        list[str] | None,
        _make_option(
            "--filter",
            "EXPR",
            _ROWS,
            "Keep only rows for which this SQL condition is true. If repeated, all conditions must be true.",
        ),
    ] = None
    project: Annotated[
        list[str] | None,
        _make_option(
            "--project",
            "COLUMNS|NAME=EXPR",
            _ROWS,
            "Keep only these columns: city,amount; or compute one: 'total=price * quantity'. May be repeated.",
        ),
    ] = None
    types: Annotated[
        list[str] | None,
        _make_option(
            "--types",
            "COLUMN=TYPE,...",
            _ROWS,
            "Types of input columns, instead of the types in the files or guessed types: "
            "zip=string,total=decimal(12,2). A column may first appear in a later file.",
        ),
    ] = None
    format: Annotated[
        str | None,
        _make_option(
            "--format",
            "FORMAT",
            _FILES,
            "The format of all files, whatever their names: csv, tsv, jsonl, json, parquet, csv.gz, ... Without it, "
            "the name of a file or the first bytes of standard input decide. Or the format of the message on each "
            "line: debezium, debezium-flat, maxwell, canal, wal2json, kcat:debezium, ...",
        ),
    ] = None
    on_bad: Annotated[
        str,
        _make_option(
            "--on-bad",
            "stop|drop",
            _FILES,
            "What to do with a message that cannot be read: stop the run, or count it and skip it.",
        ),
    ] = "stop"
    bad_output: Annotated[
        Path | None,
        _make_option(
            "--bad-output",
            "FILE",
            _FILES,
            "The file for the messages that --on-bad drop skips, each with its position and the reason.",
        ),
    ] = None
    delimiter: Annotated[
        str | None,
        _make_option(
            "--delimiter",
            "CHARACTER",
            _FILES,
            "The character between the values of CSV: ';', '|', or tab. Without it, a comma; in .tsv and .tab a tab.",
        ),
    ] = None
    null: Annotated[
        list[str] | None,
        _make_option(
            "--null",
            "TEXT",
            _FILES,
            "A text that means null in CSV if it is not in quotes, such as NA. An empty field is always null. May be "
            "repeated.",
        ),
    ] = None
    encoding: Annotated[
        str, _make_option("--encoding", "NAME", _FILES, "The encoding of text files: latin-1, cp1252, utf-16, ...")
    ] = "utf-8"
    decimal: Annotated[
        str,
        _make_option("--decimal", "CHARACTER", _FILES, "The decimal separator of numbers in CSV: a point or a comma."),
    ] = "."
    dates: Annotated[
        list[str] | None,
        _make_option(
            "--dates",
            "FORM",
            _FILES,
            "The format of dates and timestamps in text: '%d.%m.%Y', '%m/%d/%Y %H:%M', iso. Without it, ISO 8601. May "
            "be repeated; the first format that matches a value applies.",
        ),
    ] = None
    thousands: Annotated[
        str | None,
        _make_option(
            "--thousands",
            "CHARACTER",
            _FILES,
            "The thousands separator of numbers in CSV: a point, a comma, an apostrophe or a space.",
        ),
    ] = None
    strict_columns: Annotated[
        bool,
        _make_option(
            "--strict-columns",
            None,
            _FILES,
            "Refuse files that add a column or lack one. Without it, a new column is null in older rows, a missing "
            "column is null in its file, and a line names both.",
        ),
    ] = False
    skip_bad_files: Annotated[
        bool,
        _make_option(
            "--skip-bad-files",
            None,
            _FILES,
            "Skip files that cannot be read or whose rows are refused, report each with the reason, and continue.",
        ),
    ] = False
    output: Annotated[
        str | None,
        _make_option(
            "--output/-o",
            "FILE",
            _OUT,
            "The output file; its extension sets the format. - prints JSON lines on stdout. Without it, a terminal "
            "gets the first rows as a table, and a pipe gets JSON lines.",
        ),
    ] = None
    stale_output: Annotated[
        Path | None, _make_option("--stale-output", "FILE", _OUT, "The file for the events of --stale mark or side.")
    ] = None
    overwrite: Annotated[bool, _make_option("--overwrite", None, _OUT, "Replace output files that exist.")] = False
    as_json: Annotated[
        bool,
        _make_option("--json", None, _OUT, "Print the result as one JSON object on stdout; requires -o FILE."),
    ] = False
    state: Annotated[
        str | None,
        _make_option(
            "--state",
            "FOLDER",
            _STATE,
            "Continue the state in this folder, or s3://bucket/prefix; a missing state is created. Each file is its "
            "next epoch.",
        ),
    ] = None
    epoch: Annotated[
        int | None,
        _make_option(
            "--epoch",
            "N",
            _STATE,
            "The epoch number of the first file. A committed epoch returns its rows again, so you can run the same "
            "line again after a crash.",
            least=1,
        ),
    ] = None
    at: At = None
    retain: Annotated[
        int | None,
        _make_option(
            "--retain",
            "N",
            _STATE,
            "How far before the last time export --as-of and why --as-of can read, from this run on: in numbers, in "
            "days, or in the unit of timestamps, mostly microseconds. Without it, unchanged.",
            least=0,
        ),
    ] = None
    memory: Annotated[
        str | None,
        _make_option(
            "--memory",
            "SIZE",
            _STATE,
            "The memory budget of the state, such as 512MB; the part that does not fit stays in its files.",
        ),
    ] = None
    trust: Annotated[
        str,
        _make_option(
            "--trust",
            "owner|group",
            _STATE,
            "group also accepts a folder of another user, or one that others can write to.",
        ),
    ] = "owner"
    counts: bool = False
    whole: bool = False

    def list_given_options(self, of: Collection[str]) -> list[str]:
        """List those options of the set ``of`` whose values differ from their defaults."""
        asked = (each for each in fields(self) if each.name in of)
        return [f"--{each.name.replace('_', '-')}" for each in asked if getattr(self, each.name) != each.default]

    @property
    def holds_back(self) -> bool:
        """True if the options name a time column."""
        return self.time is not None


def with_options(
    without: Collection[str] = (), only: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a verb from a function that takes a `VerbOptions` as ``ask``.

    All other parameters of the function become options of the verb. In addition, the verb gets an option for each field
    of `VerbOptions` in ``only``, or by default for each field that is not in ``without``.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(VerbOptions, include_extras=True)
        own = [each for each in inspect.signature(verb, eval_str=True).parameters.values() if each.name != "ask"]
        asked = [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if each.default is MISSING else each.default,
                annotation=hints[each.name],
            )
            for each in fields(VerbOptions)
            if each.name not in {*without, "counts", "whole"} and (only is None or each.name in only)
        ]

        def call(**given: Any) -> None:
            ask = VerbOptions(**{each.name: given.pop(each.name) for each in asked if each.name in given})
            verb(ask=ask, **given)

        call.__name__, call.__doc__, call.__module__ = verb.__name__, verb.__doc__, verb.__module__
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        vars(call)["__signature__"] = inspect.Signature([*own, *asked])
        return call

    return decorate

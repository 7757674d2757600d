"""Declare the arguments and options that verbs share: states, logs, inputs and outputs.

`VerbOptions` holds the options of a verb that reads files. `with_options` gives them to the verb's function. The types
before it, such as `State`, are options of a single kind.

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

_WINS, _GOES, _MERGES = "Which event of a key wins", "What deletes, what is no change", "How partial rows are merged"
_OUT, _TIME, _ROWS, _STATE, _FILES = "Output", "Time", "Rows", "State", "Files"

State = Annotated[
    str, typer.Argument(metavar="STATE", show_default=False, help="The folder of a state, or s3://bucket/prefix.")
]
Input = Annotated[
    str | None,
    typer.Option("--input", metavar="NAME", show_default=False, help="Which input, where the state has several."),
]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", show_default=False, help="As it was at a time that is still kept."),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        show_default=False,
        rich_help_panel="State",
        help="The time of the file, one file a run: a day (2026-11-26), a moment (2026-11-26T12:00Z) or a number. The "
        "first run says which of these times are. Without: numbers go on, and for a day you are asked.",
    ),
]
Full = Annotated[
    list[str] | None,
    typer.Option(
        "--full",
        metavar="FILE",
        show_default=False,
        help="A file of the log that is full contents, as `ddflow replace` takes it: a name, a folder, or a "
        "pattern such as 'full-*.csv'. May be repeated.",
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(
        "--scope",
        metavar="EXPR",
        show_default=False,
        help="The scope of the files that --full names. Without: what the state says of each.",
    ),
]
Rewriting = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        show_default=False,
        help="What may be taken, such as 512MB; without, some half a million rows at a time.",
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
        help="Types of columns, in every file that has them: zip=string,total=decimal(12,2).",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        show_default=False,
        help="The file to write, of the kind its extension says; - for JSON lines on stdout. Without: a table on a "
        "terminal, JSON lines into a pipe.",
    ),
]
Trust = Annotated[
    str,
    typer.Option(
        "--trust", metavar="owner|group", help="group accepts a folder of another user, or that others can write to."
    ),
]

OF_FULL_FILES = frozenset({"scope", "allow_empty", "max_absent"})
"""Options of ``replace`` and ``count --full``. The next sets hold options of counts, states, merges and events."""
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
    """The options of a command line.

    ``counts``: whether the verb counts rows. ``whole``: whether each file has full contents.

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
            help="Files (.parquet, .csv, .tsv, .tab, .jsonl, .ndjson, .json, .arrow, .feather, .arrows; text also .gz "
            "and .zst), folders of them, patterns ('days/*.csv'), s3:// addresses of any of these, or - for standard "
            "input.",
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
            "The files hold only the rows for which this SQL condition is true: others stay as they are.",
        ),
    ] = None
    allow_empty: Annotated[
        bool,
        _make_option(
            "--allow-empty", None, _GOES, "Take a file without rows as well: it deletes every key (of the scope)."
        ),
    ] = False
    max_absent: Annotated[
        str | None,
        _make_option(
            "--max-absent", "N|P%", _GOES, "Stop at a file that would delete more keys than this: 100, or 50% of them."
        ),
    ] = None
    by: Annotated[
        list[str] | None,
        _make_option(
            "--by", "COLUMNS", _ROWS, "The groups to count by: city, or city,year. Without: one count of all rows."
        ),
    ] = None
    name: Annotated[str, _make_option("--name", "NAME", _ROWS, "What the column of counts is called.")] = "count"
    net: Annotated[bool, _make_option("--net", None, _OUT, "Write the final counts instead of their differences.")] = (
        False
    )
    order_by: Annotated[
        list[str] | None,
        _make_option(
            "--order-by",
            "COLUMNS",
            _WINS,
            "The greatest of these wins, left to right, null smallest. Without: the last to arrive.",
        ),
    ] = None
    tie: Annotated[
        str, _make_option("--tie", "last|first|greatest|error", _WINS, "Which of two events of equal order wins.")
    ] = "last"
    seq: Annotated[
        str | None,
        _make_option(
            "--seq", "COLUMN", _WINS, "The integer column that counts arrivals, where the rows' own order is not it."
        ),
    ] = None
    stale: Annotated[
        str,
        _make_option(
            "--stale",
            "drop|mark|side",
            _WINS,
            "An event older than what its key holds: counted; or every event marked, or the stale ones, in a file of "
            "their own.",
        ),
    ] = "drop"
    time: Annotated[
        str | None,
        _make_option("--time", "COLUMN", _TIME, "Hold-back mode, by this column: int64, a timestamp or a date."),
    ] = None
    lateness: Annotated[
        str | None,
        _make_option(
            "--lateness",
            "N",
            _TIME,
            "Close times this far behind the greatest seen: a number in the column's unit, or 10s, 5min, 2h, 1d. 0 "
            "for input sorted by time. Without: everything waits for the end.",
        ),
    ] = None
    late: Annotated[
        str,
        _make_option("--late", "error|drop|advance", _TIME, "What becomes of an event whose time is closed already."),
    ] = "error"
    tombstone: Annotated[
        str | None,
        _make_option(
            "--tombstone",
            "COLUMN[=VALUE]",
            _GOES,
            "An event deletes where the column has this value (op=D), is true, or is not null.",
        ),
    ] = None
    delete: Annotated[
        str | None, _make_option("--delete", "EXPR", _GOES, "An event deletes where this SQL condition is true.")
    ] = None
    null_key: Annotated[
        str, _make_option("--null-key", "error|drop|keep", _GOES, "What becomes of an event whose key is null.")
    ] = "error"
    noop_ignore: Annotated[
        list[str] | None, _make_option("--noop-ignore", "COLUMNS", _GOES, "Columns whose change alone is no change.")
    ] = None
    track: Annotated[
        list[str] | None,
        _make_option(
            "--track", "COLUMNS", _GOES, "The only columns whose change is a change; the opposite of --noop-ignore."
        ),
    ] = None
    merge: Annotated[
        list[str] | None,
        _make_option(
            "--merge",
            "COLUMN=STRATEGY",
            _MERGES,
            "Rows are partial: visits=sum, tags=union; default=last for the others; or just first_row.",
        ),
    ] = None
    group: Annotated[
        list[str] | None,
        _make_option(
            "--group",
            "ORDER=COLUMNS",
            _MERGES,
            "These columns are decided by an order of their own: paid_at=amount,currency.",
        ),
    ] = None
    versions: Annotated[
        str,
        _make_option(
            "--versions",
            "row|cell",
            _MERGES,
            "One order for the row, or one for each cell: then a late partial row fills what is older.",
        ),
    ] = "row"
    derive: Annotated[
        list[str] | None,
        _make_option(
            "--derive",
            "COLUMN=EXPRESSION",
            _MERGES,
            "A column that is computed of the merged row: 'total=score + bonus'.",
        ),
    ] = None
    filter_: Annotated[
        list[str] | None,
        _make_option(
            "--filter", "EXPR", _ROWS, "Keep the rows for which this SQL condition is true. Several must all hold."
        ),
    ] = None
    project: Annotated[
        list[str] | None,
        _make_option(
            "--project",
            "COLUMNS|NAME=EXPR",
            _ROWS,
            "Keep these columns: city,amount; or compute one: 'total=price * quantity'. May be repeated.",
        ),
    ] = None
    types: Annotated[
        list[str] | None,
        _make_option(
            "--types",
            "COLUMN=TYPE,...",
            _ROWS,
            "Types of input columns where those of the files, or guessed ones, will not do: "
            "zip=string,total=decimal(12,2). A column may come in later files only.",
        ),
    ] = None
    format: Annotated[
        str | None,
        _make_option(
            "--format",
            "FORMAT",
            _FILES,
            "What the files are, whatever their names say: csv, tsv, jsonl, json, parquet, csv.gz, ... For standard "
            "input; without, its first bytes tell. Or the message that each line is: debezium, debezium-flat, maxwell, "
            "canal, wal2json, kcat:debezium, ...",
        ),
    ] = None
    on_bad: Annotated[
        str,
        _make_option(
            "--on-bad",
            "stop|drop",
            _FILES,
            "What becomes of a message that cannot be read: the run stops, or it is counted and left out.",
        ),
    ] = "stop"
    bad_output: Annotated[
        Path | None,
        _make_option(
            "--bad-output",
            "FILE",
            _FILES,
            "Where --on-bad drop writes those messages, each with its place and the reason.",
        ),
    ] = None
    delimiter: Annotated[
        str | None,
        _make_option(
            "--delimiter",
            "CHARACTER",
            _FILES,
            "What stands between the values of CSV: ';', '|', or tab. Without: a comma; in .tsv and .tab a tab.",
        ),
    ] = None
    null: Annotated[
        list[str] | None,
        _make_option(
            "--null",
            "TEXT",
            _FILES,
            "A value of CSV that means null where it is not in quotes, beside the empty one: NA. May be repeated.",
        ),
    ] = None
    encoding: Annotated[
        str, _make_option("--encoding", "NAME", _FILES, "Of text files: latin-1, cp1252, utf-16, ...")
    ] = "utf-8"
    decimal: Annotated[
        str,
        _make_option(
            "--decimal", "CHARACTER", _FILES, "What stands before the fraction of a number of CSV: . or a comma."
        ),
    ] = "."
    dates: Annotated[
        list[str] | None,
        _make_option(
            "--dates",
            "FORM",
            _FILES,
            "How dates and timestamps of text are written: '%d.%m.%Y', '%m/%d/%Y %H:%M', iso. Without: as ISO 8601 "
            "says. May be repeated; a value is in the first that it looks like.",
        ),
    ] = None
    thousands: Annotated[
        str | None,
        _make_option(
            "--thousands",
            "CHARACTER",
            _FILES,
            "What stands between groups of three digits of a number of CSV: . or a comma, an apostrophe, a space.",
        ),
    ] = None
    strict_columns: Annotated[
        bool,
        _make_option(
            "--strict-columns",
            None,
            _FILES,
            "Refuse files that add a column or lack one. Without: a new column is null in older rows, a missing one "
            "is null there, and a line says which.",
        ),
    ] = False
    skip_bad_files: Annotated[
        bool,
        _make_option(
            "--skip-bad-files",
            None,
            _FILES,
            "Leave out files that cannot be read or whose rows are refused, say which and why, and go on.",
        ),
    ] = False
    output: Annotated[
        str | None,
        _make_option(
            "--output/-o",
            "FILE",
            _OUT,
            "The file to write, of the kind its extension says; - for JSON lines on stdout. Without: the first rows "
            "as a table on a terminal, JSON lines into a pipe.",
        ),
    ] = None
    stale_output: Annotated[
        Path | None, _make_option("--stale-output", "FILE", _OUT, "Where --stale mark or side writes those events.")
    ] = None
    overwrite: Annotated[bool, _make_option("--overwrite", None, _OUT, "Replace output files that exist.")] = False
    as_json: Annotated[
        bool,
        _make_option("--json", None, _OUT, "Print what was done as one JSON object on stdout; needs -o FILE."),
    ] = False
    state: Annotated[
        str | None,
        _make_option(
            "--state",
            "FOLDER",
            _STATE,
            "Continue the state in this folder, or s3://bucket/prefix; made if it is missing. Each file is its next "
            "epoch.",
        ),
    ] = None
    epoch: Annotated[
        int | None,
        _make_option(
            "--epoch",
            "N",
            _STATE,
            "The first file is this epoch of the state. A committed epoch gives its rows again, so you can run the "
            "same line again after a crash.",
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
            "How far before the last time export --as-of and why --as-of can read, from here on: numbers, days, or of "
            "moments their unit, mostly microseconds. Without: as before.",
            least=0,
        ),
    ] = None
    memory: Annotated[
        str | None,
        _make_option(
            "--memory", "SIZE", _STATE, "A budget for the state, such as 512MB; what does not fit stays in its files."
        ),
    ] = None
    trust: Annotated[
        str,
        _make_option(
            "--trust", "owner|group", _STATE, "group accepts a folder of another user, or that others can write to."
        ),
    ] = "owner"
    counts: bool = False
    whole: bool = False

    def list_given_options(self, of: Collection[str]) -> list[str]:
        """List the options in ``of`` that differ from their defaults."""
        asked = (each for each in fields(self) if each.name in of)
        return [f"--{each.name.replace('_', '-')}" for each in asked if getattr(self, each.name) != each.default]

    @property
    def holds_back(self) -> bool:
        """Whether the options name a time column."""
        return self.time is not None


def with_options(
    without: Collection[str] = (), only: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a verb from a function that takes a `VerbOptions` as ``ask``.

    The verb keeps the other parameters of the function as its options, then adds the fields of `VerbOptions`: all
    except ``without``, or ``only`` some.
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

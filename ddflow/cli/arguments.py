"""The arguments and options that verbs share, each described once: of a state, of its log, of how files are written.

Invariant: an option of one name means the same under every verb that has it, and has one description.  Nothing heavy is
imported here, because help is shown without it.

>>> Trust.__metadata__[0].metavar
'owner|group'
"""

from pathlib import Path
from typing import Annotated

import typer

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
"""The memory of a verb that rewrites a state."""
FILES = "Files"
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default=False,
        rich_help_panel=FILES,
        help="What the files are, whatever their names say: csv, tsv, jsonl, json, parquet, csv.gz, ... For standard "
        "input; without, its first bytes tell. Or the message that each line is: debezium, debezium-flat, maxwell, "
        "canal, wal2json, kcat:debezium, ...",
    ),
]
OnBad = Annotated[
    str,
    typer.Option(
        "--on-bad",
        metavar="stop|drop",
        rich_help_panel=FILES,
        help="What becomes of a message that cannot be read: the run stops, or it is counted and left out.",
    ),
]
BadOutput = Annotated[
    Path | None,
    typer.Option(
        "--bad-output",
        metavar="FILE",
        show_default=False,
        rich_help_panel=FILES,
        help="Where --on-bad drop writes those messages, each with its place and the reason.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter",
        metavar="CHARACTER",
        show_default=False,
        rich_help_panel=FILES,
        help="What stands between the values of CSV: ';', '|', or tab. Without: a comma; in .tsv and .tab a tab.",
    ),
]
Null = Annotated[
    list[str] | None,
    typer.Option(
        "--null",
        metavar="TEXT",
        show_default=False,
        rich_help_panel=FILES,
        help="A value of CSV that means null where it is not in quotes, beside the empty one: NA. May be repeated.",
    ),
]
Encoding = Annotated[
    str,
    typer.Option(
        "--encoding", metavar="NAME", rich_help_panel=FILES, help="Of text files: latin-1, cp1252, utf-16, ..."
    ),
]
Decimal = Annotated[
    str,
    typer.Option(
        "--decimal",
        metavar="CHARACTER",
        rich_help_panel=FILES,
        help="What stands before the fraction of a number of CSV: . or a comma.",
    ),
]
Thousands = Annotated[
    str | None,
    typer.Option(
        "--thousands",
        metavar="CHARACTER",
        show_default=False,
        rich_help_panel=FILES,
        help="What stands between groups of three digits of a number of CSV: . or a comma, an apostrophe, a space.",
    ),
]
Dates = Annotated[
    list[str] | None,
    typer.Option(
        "--dates",
        metavar="FORM",
        show_default=False,
        rich_help_panel=FILES,
        help="How dates and timestamps of text are written: '%d.%m.%Y', '%m/%d/%Y %H:%M', iso. Without: as ISO 8601 "
        "says. May be repeated; a value is in the first that it looks like.",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        metavar="COLUMN=TYPE,...",
        show_default=False,
        rich_help_panel=FILES,
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

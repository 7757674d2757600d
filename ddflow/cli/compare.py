"""Compare two files by key: the verb ``ddflow compare``.

`ddflow/tools/compare.py` computes the differences. In a file or a pipe, each difference is one row. On a terminal, a
table shows both values of a changed column in one cell.

Guarantees: stdout carries only the differences; all other text goes to stderr.

>>> format_cell("Bern", "Chur", "changed", True), format_cell(None, 7, "added", False)
('Bern -> Chur', 7)
>>> format_cell(None, 1.5, "changed", True)
'null -> 1.5'
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ddflow.cli.arguments import OF_TEXT, Output, Types, VerbOptions, with_options
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import format_count

DIFFERENT, TROUBLE = 1, 2
"""Exit codes with ``--exit-code``, as in the Unix program ``diff``.

``DIFFERENT`` means that rows differ, and ``TROUBLE`` means that the comparison failed.
"""


Before = Annotated[
    str, typer.Argument(metavar="BEFORE", show_default=False, help="The old file, or a folder of files.")
]
After = Annotated[str, typer.Argument(metavar="AFTER", show_default=False, help="The new file, or a folder of files.")]
Key = Annotated[
    list[str],
    typer.Option(
        "--key",
        "-k",
        metavar="COLUMNS",
        show_default=False,
        help="The columns that identify a row: id, or id,region. May be repeated.",
    ),
]


NullKey = Annotated[
    str,
    typer.Option(
        "--null-key",
        metavar="error|drop|keep",
        help="What to do with a row whose key is null: refuse it, drop it, or keep it like any other row.",
    ),
]
ExitCode = Annotated[
    bool,
    typer.Option(
        "--exit-code",
        help="Exit like the Unix program `diff`: 0 if no row differs, 1 if rows differ, 2 if the comparison fails.",
    ),
]


@with_options(only=OF_TEXT)
def compare(
    before: Before,
    after: After,
    key: Key,
    ask: VerbOptions,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="COLUMNS", show_default=False, help="Columns to leave out of the comparison."),
    ] = None,
    null_key: NullKey = "error",
    output: Output = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output file that exists.")] = False,
    exit_code: ExitCode = False,
    types: Types = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print how many rows differ as one JSON object, instead of the rows.")
    ] = False,
) -> None:
    """Compare two files by key: show the rows that were added, removed or changed, with their old and new values.

    Each difference is a row: the key, `_change` (added, removed, changed), `_changed` (the columns that differ), and
    every other column twice, as `NAME_before` and `NAME_after`. The rows are sorted by key. A key that is null or
    occurs twice in a file is an error. If only one file has a column, the column is null for the other file, and a
    message on stderr names it.

    The exit code is 0 when the verb is done, whether rows differ or not. See also `--exit-code`.

    Examples:

    * `ddflow compare yesterday.csv today.csv --key id`

    * `ddflow compare old.parquet new.parquet --key id,region --ignore updated_at -o changes.parquet`
    """
    from ddflow.cli.input_files import build_file_options, warn_of_text_columns
    from ddflow.cli.plan import parse_column_names
    from ddflow.cli.words import format_for_shell
    from ddflow.columns.casts import parse_types
    from ddflow.errors import DdflowError
    from ddflow.tools.compare import compare_tables

    try:
        files = build_file_options(ask)
        columns = parse_column_names(key), parse_column_names(ignore or []), parse_types(types or ())
        with show_amount_progress("reading") as tick:
            done = compare_tables(before, after, *columns, files, tick, null_key)  # type: ignore[arg-type]
        warn_of_text_columns(done.doubts)
        for note in done.notes:
            say(note, err=True)
        if output is not None or not as_json:
            _write_differences(done, output, overwrite)
    except DdflowError as error:
        if not exit_code:
            raise
        say(f"ddflow: {format_for_shell(error.message)}", err=True)
        raise typer.Exit(TROUBLE) from None
    if as_json:
        say(json.dumps({**done.counts, "before": done.rows[0], "after": done.rows[1], "output": output}))
    else:
        found = ", ".join(f"{n:,} {what}" for what, n in done.counts.items())
        say(f"{found}; {format_count(done.rows[0], 'row')} before, {done.rows[1]:,} after", err=True)
    if exit_code and done.table.num_rows:
        raise typer.Exit(DIFFERENT)


def _write_differences(done: Any, output: str | None, overwrite: bool) -> None:
    """Write the differences as a table on a terminal, as JSON lines, or to a file."""
    import sys

    from ddflow.cli.output import open_row_output
    from ddflow.connectors.files.kinds import CSV, TSV, find_kind
    from ddflow.tools.compare import CHANGED

    if output is None and sys.stdout.isatty():
        _show_differences(done.table)
        return
    table = done.table
    if output not in (None, "-") and find_kind(Path(str(output))).name in (CSV, TSV):  # CSV has no lists
        place = table.column_names.index(CHANGED)
        named = [None if each is None else ",".join(each) for each in table.column(CHANGED).to_pylist()]
        table = table.set_column(place, CHANGED, [named])
    with open_row_output(output, table.schema, overwrite) as file:
        file.write(table)


def _show_differences(table: Any) -> None:
    """Show the first differences as a table on a terminal."""
    import pyarrow as pa

    from ddflow.cli.output import SHOWN, TablePreview
    from ddflow.tools.compare import CHANGE, CHANGED, SUFFIXES

    names = table.column_names
    key = names[: names.index(CHANGE)]
    values = [name.removesuffix(SUFFIXES[0]) for name in names[len(key) + 2 :: 2]]
    rows = []
    for row in table.slice(0, SHOWN).to_pylist():
        cells = {
            name: format_cell(
                row[name + SUFFIXES[0]], row[name + SUFFIXES[1]], row[CHANGE], name in (row[CHANGED] or ())
            )
            for name in values
        }
        rows.append({name: row[name] for name in key} | {CHANGE: row[CHANGE]} | cells)
    shown = [*key, CHANGE, *values]
    texts = [[None if row[name] is None else str(row[name]) for row in rows] for name in shown]
    schema = pa.schema([(name, pa.string()) for name in shown])
    with TablePreview(schema) as preview:
        preview.write(pa.table([pa.array(each, pa.string()) for each in texts], schema=schema))
        preview.written = table.num_rows


def format_cell(before: Any, after: Any, change: str, differs: bool) -> Any:
    """Format the two values of a column as one cell."""
    if differs:
        one, other = ("null" if each is None else str(each) for each in (before, after))
        return f"{one} -> {other}"
    return before if change == "removed" else after

"""Run a SQL query over files: the verb ``ddflow sql``.

The user writes a table as `NAME=FILES:key=COLUMN:order-by=COLUMN`. If a table has a key, its rows are upserts. If a
table has no key, each row is appended. The options of a table mean the same as in `diff`.

Guarantees: the answer equals the answer of the same query in Python.

>>> sql.__name__
'sql'
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from ddflow.cli.arguments import OF_MESSAGES, OF_TEXT, Output, Types, VerbOptions, with_options
from ddflow.cli.say import say, show_amount_progress
from ddflow.errors import SpecError
from ddflow.terminal import format_count

if TYPE_CHECKING:
    import pyarrow as pa

    import ddflow as dd
    from ddflow.cli.say import Tick
    from ddflow.columns.order_words import OrderColumn
    from ddflow.connectors.files import FileOptions, FileOutput, MultiFileReader
    from ddflow.plan.sql import PlannedQuery

OPTIONS: Final = ("key", "order-by", "tombstone", "diff")
_NAMED: Final = re.compile(r"([^\W\d]\w*)=(.+)", re.DOTALL)

Options = dict[str, list[str]]
"""The options that may follow the files of a table, and the values of each option."""


class TableArgument(NamedTuple):
    """A table of the command line.

    >>> parse_table("orders=s3://logs/orders.parquet:key=id,region:order-by=at")
    TableArgument(name='orders', file='s3://logs/orders.parquet', options={'key': ['id,region'], 'order-by': ['at']})
    >>> collect_table_options("z", group_tables(["z=1.csv:key=id:delimiter=|", "z=2.csv:full:null=NA:null=-"])["z"])
    {'key': ['id'], 'delimiter': ['|'], 'full': [''], 'null': ['NA', '-']}
    """

    name: str
    file: str
    options: Options


def parse_table(text: str) -> TableArgument:
    """Parse a table of the command line. Raises `typer.BadParameter`."""
    from ddflow.connectors.files.file_path import WRITING, split_address_options

    match = _NAMED.fullmatch(text)
    if match is None:
        more = " (a name has only letters, digits and _, and does not begin with a digit)" if "=" in text else ""
        raise typer.BadParameter(f"{text}: write NAME=FILE[:key=COLUMNS], such as orders=orders.parquet:key=id{more}")
    try:
        return TableArgument(match[1], *split_address_options(match[2], (*OPTIONS, *WRITING), f"{match[1]}="))
    except SpecError as error:
        raise typer.BadParameter(str(error)) from None


def group_tables(texts: Sequence[str]) -> dict[str, list[TableArgument]]:
    """Group the files by the name of their table."""
    out: dict[str, list[TableArgument]] = {}
    for each in map(parse_table, texts):
        out.setdefault(each.name, []).append(each)
    return out


def collect_table_options(name: str, parts: Sequence[TableArgument]) -> Options:
    """Collect the options of a table. Raises `typer.BadParameter`."""
    from ddflow.connectors.files.file_path import FULL, WRITING

    options: Options = {}
    for each in parts:
        options |= each.options
    if "key" in options and "diff" in options:
        raise typer.BadParameter(
            f"the table {name!r} has a key and diff=: a row with a key counts once; omit one of them"
        )
    if "key" not in options and (others := sorted(options.keys() - {"diff", *WRITING})):
        other = others[0] if others[0] == FULL else f"{others[0]}="
        raise typer.BadParameter(f"the table {name!r} has {other} but no key: write {name}=FILE:key=COLUMNS")
    return options


def build_table_file_options(options: Options, of_all: "FileOptions") -> "FileOptions":
    """Combine the common options of files with a table's options. Raises `SpecError`."""
    from ddflow.cli.input_files import parse_file_kind
    from ddflow.connectors.files.file_path import RENAME, collect_text_options

    said: dict[str, Any] = {
        {"null": "nulls"}.get(name, name): value for name, value in collect_text_options(options).items()
    }
    if RENAME in said:
        said[RENAME] = tuple(said[RENAME].items())
    if "format" in said:
        said["kind"] = parse_file_kind(said.pop("format"))
    return replace(of_all, dialect=of_all.dialect._replace(**said))


def build_table_spec(options: Options) -> "dd.Upsert":
    """Build the upsert spec of a table."""
    import ddflow as dd
    from ddflow.cli.plan import parse_column_names

    delete: Any = None
    if "tombstone" in options:
        column, equals, value = options["tombstone"][-1].partition("=")
        delete = dd.tombstone(column.strip(), value if equals else None)
    return dd.Upsert(
        key=parse_column_names(options["key"][-1:]),
        order_by=parse_column_names(options.get("order-by", [])[-1:]),
        delete=delete,
    )


OUT: Final = "out"
"""The name of the flow's output."""


Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME=FILE[:key=COLUMNS]...",
        show_default=False,
        help="A table: a name, a file, folder or pattern, and the columns that identify a row. Optional after them: "
        ":order-by=COLUMNS, :tombstone=COLUMN[=VALUE], or :full if each file holds all rows, so that a key that a "
        "later file lacks is deleted. Without a key, rows are appended: each counts once, or :diff=COLUMN times. If "
        "tables differ in format, their options follow too: :format=csv:delimiter=;. Repeat a name to add files to "
        "its table.",
    ),
]


@with_options(only=OF_TEXT | OF_MESSAGES)
def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", show_default=False, help="A query over the tables, in Spark SQL.")
    ],
    tables: Tables,
    ask: VerbOptions,
    output: Output = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output file that exists.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Write the differences, file by file, instead of the final rows.")
    ] = False,
    types: Types = None,
    as_json: Annotated[bool, typer.Option("--json", help="With -o: print the result as one JSON object.")] = False,
) -> None:
    """Run a SQL query over files of upserts, with joins, groups, subqueries and tops.

    The first files of all tables form one epoch, the second files form the next epoch, and so on. If some of the files
    are full files (`:full`), all full files form one epoch, and all other files form the next epoch. The rows of the
    answer have the order of ORDER BY. Without ORDER BY, no order is promised.

    Examples:

    * `ddflow sql "select city, count(*) n from orders group by city order by n desc" orders=orders.parquet:key=id`

    * `ddflow sql "select path, count(*) n from log group by path" log='logs/*.csv.gz' --diff`

    * `ddflow sql "select city, count(*) n from shops group by city" shops='day*.csv:key=id:full'`

    * `ddflow sql "select c.city, sum(o.amount) revenue from orders o join customers c on o.customer = c.id
    group by c.city" orders=monday.csv:key=id orders=tuesday.csv customers=customers.csv:key=id --diff -o changes.csv`
    """
    if as_json and output in (None, "-"):
        raise typer.BadParameter("--json and the rows would both go to stdout: write the rows to a file with -o FILE")
    import ddflow as dd
    from ddflow.cli.input_files import build_file_options
    from ddflow.cli.output import open_row_output
    from ddflow.cli.plan import check_bad_message_options, check_distinct_outputs, parse_format

    named = {name: (parts, collect_table_options(name, parts)) for name, parts in group_tables(tables).items()}
    words = {name: told["format"][-1] if "format" in told else ask.format for name, (_, told) in named.items()}
    check_bad_message_options(next(filter(parse_format, words.values()), None), ask.on_bad, ask.bad_output)
    check_distinct_outputs({"--output": output, "--bad-output": ask.bad_output})
    flow, read, bad = dd.Flow(), 0, 0
    full = {name for name, (_, told) in named.items() if "full" in told}
    options = build_file_options(ask)
    given = {
        n: _declare_table(flow, n, *each, types or (), options, (words[n], ask.on_bad)) for n, each in named.items()
    }
    answer, order = _plan_query(flow, query, diff)
    rows = flow.output(OUT, answer.of)
    schema = rows.updates_schema(flow.time_type) if diff else rows.schema.empty_table().select(answer.columns).schema
    with flow.open() as engine, ExitStack() as stack:
        out: Any = stack.enter_context(open_row_output(output, schema, overwrite))
        aside = _open_bad_output(flow, ask.bad_output, overwrite, stack)
        tick = stack.enter_context(_show_progress(given, out))
        for files in zip_longest(*(source.files for source in given.values())):
            readers, counts = _open_readers(given, files, full, tick)
            for step in _ingest_files(engine, readers, full):
                if diff:
                    out.write(step[OUT])
                for side in flow.side_outputs():
                    bad += step[side].num_rows
                    if aside is not None:
                        aside.write(step[side])
            read += sum(counts)
        if not diff:
            out.write(_repeat_rows_by_diff(engine.read(OUT), order).select(answer.columns))
    _report_result(
        read, len(given), {"updates" if diff else "rows": out.written}, (bad, ask.bad_output), output, as_json
    )


def _declare_table(
    flow: "dd.Flow",
    name: str,
    parts: "Sequence[TableArgument]",
    told: "Options",
    types: Sequence[str],
    options: "FileOptions",
    messages: tuple[str | None, str],
) -> "MultiFileReader":
    """Open the files of a table, and make the table an input of the flow.

    ``messages``: the arguments of `parse_format`.
    """
    from ddflow.cli.input_files import warn_of_text_columns
    from ddflow.cli.plan import find_message_columns, parse_format
    from ddflow.columns.casts import parse_types
    from ddflow.connectors.files import open_files

    paths, options = [each.file for each in parts], build_table_file_options(told, options)
    spec, of, declared = build_table_spec(told) if "key" in told else None, parse_format(*messages), parse_types(types)
    if of is not None:
        if spec is None:
            raise typer.BadParameter(f"messages are upserts: write {name}=FILE:key=COLUMNS")
        found = open_files(paths, how=options)
        flow.upserts(name, find_message_columns(found, str(messages[0]), declared), spec, format=of)
        return found
    required = told["diff"][-1:] if "diff" in told else [] if spec is None else [*spec.key, *spec.order_by]
    found = open_files(paths, declared, required, None, options)
    warn_of_text_columns(found.doubts)
    if spec is None:
        flow.updates(name, found.schema, *told.get("diff", ())[-1:])
    else:
        flow.upserts(name, found.schema, spec)
    return found


def _plan_query(flow: "dd.Flow", query: str, diff: bool) -> "tuple[PlannedQuery, Sequence[OrderColumn]]":
    """Plan the query; return its collection and the order of its rows.

    The collection is stored, unless ``diff`` is true.
    """
    from ddflow.operators.row_order import parse_order_columns
    from ddflow.plan.sql import PlannedQuery, plan_sorted_query

    answer = PlannedQuery(flow.sql(query), [], []) if diff else plan_sorted_query(flow, query)
    if not diff and not _has_stored_rows(answer.of):
        answer = answer._replace(of=answer.of.arrange([]))
    return answer, parse_order_columns(answer.by, answer.of.schema, "ORDER BY")


def _has_stored_rows(of: Any) -> bool:
    """Return whether a node of the plan stores the rows of a collection. Appended rows are not stored. O(nodes)."""
    ahead, seen = [of], set[Any]()
    while ahead:
        each = ahead.pop()
        if each not in seen and not each.keeps:
            if not each.inputs:
                return False
            seen.add(each)
            ahead += each.inputs
    return True


def _open_bad_output(flow: "dd.Flow", path: Path | None, overwrite: bool, stack: ExitStack) -> "FileOutput | None":
    """Open the output for unreadable messages of all tables."""
    from ddflow.columns.schema import build_updates_schema
    from ddflow.connectors.files import open_output

    if path is None:
        return None
    _, schema = next(iter(flow.side_outputs().values()))
    return stack.enter_context(open_output(path, build_updates_schema(schema, flow.time_type), overwrite))


def _ingest_files(engine: "dd.Engine", readers: dict[str, Any], full: "set[str]") -> "Iterator[dd.Step]":
    """Ingest the full files as one step, and all other files as the next step. The clock of a query is the UTC time."""
    whole = {name: readers.pop(name) for name in list(readers) if name in full}
    now = None if engine.flow.clock is None else datetime.now(UTC)
    if whole:
        yield engine.replace(whole, time=now)
    if readers:
        yield engine.step(readers, None if now is None else datetime.now(UTC))


def _report_result(
    read: int, tables: int, wrote: dict[str, int], left_out: tuple[int, Path | None], output: str | None, as_json: bool
) -> None:
    """Report the result."""
    from ddflow.cli.plan import report_bad_messages

    bad, bad_output = left_out
    if as_json:
        say(json.dumps({"read": read, "tables": tables, **wrote, "bad": bad, "output": output}))
    else:
        ((what, n),) = wrote.items()
        says = (
            f"{format_count(read, 'row')} of {format_count(tables, 'table')}: {format_count(n, what.removesuffix('s'))}"
        )
        say(says + (f"; bad {bad:,}" if bad else ""), err=True)
    report_bad_messages(bad, bad_output)


def _show_progress(given: "dict[str, MultiFileReader]", out: Any) -> "AbstractContextManager[Tick]":
    """Show the number of rows read so far, unless the rows of the answer go to the same terminal."""
    from ddflow.cli.output import JsonLines

    counts = [source.rows for source in given.values()]
    total = sum(n or 0 for n in counts) if None not in counts else None
    return show_amount_progress("reading", total, hidden=isinstance(out, JsonLines) and sys.stdout.isatty())


def _open_readers(
    given: "dict[str, MultiFileReader]", files: Sequence[str | None], full: "set[str]", shown: "Tick"
) -> tuple[dict[str, Any], list[int]]:
    """Open the next file of each table that has more files.

    Return the readers, and a count of the rows that each reader has given.
    """
    import pyarrow as pa

    from ddflow.cli.input_files import read_rows

    out, counts = dict[str, Any](), list[int]()
    for place, ((name, source), file) in enumerate(zip(given.items(), files, strict=True)):
        counts.append(0)
        if file is None:
            continue

        def tick(rows: int, updates: int, place: int = place) -> None:
            counts[place] += rows
            shown(rows)

        rows = read_rows(source, file, tick)
        rows = _refuse_empty_file(rows, file) if name in full else rows
        out[name] = pa.RecordBatchReader.from_batches(source.columns(file), rows)
    return out, counts


def _refuse_empty_file(rows: "Iterator[pa.RecordBatch]", file: str) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a full file. Raises `UnreadableInput` if the file has no rows."""
    from ddflow.errors import UnreadableInput

    first = next(rows, None)
    if first is None:
        raise UnreadableInput(file, "it has no rows, so every key would be deleted", "omit this file")
    yield first
    yield from rows


def _repeat_rows_by_diff(rows: "pa.Table", order: "Sequence[OrderColumn]") -> "pa.Table":
    """Repeat each row as often as its ``_diff`` says, in the order of the query if the query has an ORDER BY."""
    import numpy as np

    from ddflow.operators.row_order import argsort_rows

    times, rows = rows.column("_diff").to_numpy(), rows.drop_columns(["_diff"])
    places = argsort_rows(rows, order) if order else np.arange(len(times))
    return rows.take(np.repeat(places, np.maximum(times[places], 0)))

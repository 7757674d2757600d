"""Build the flow of a command line from its options, and parse the formats of message files.

`plan_flow` builds the flow, and `build_spec` builds its `Upsert`. Each function named ``parse_...`` parses one option.

Guarantees: an error about a wrong option names the option as the user typed it. An option has the same meaning as the
Python parameter with the same name.

>>> parse_column_names(["id,region", '"a,b"']), parse_projection(["city", "total=price * 2"])
(['id', 'region', 'a,b'], {'city': 'city', 'total': 'price * 2'})
>>> parse_lateness("1500ms", "at", pa.timestamp("us")), parse_lateness("2d", "on", pa.date32())
(1500000, 2)
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.types as pat
import typer

import ddflow as dd
from ddflow.cli.arguments import OF_EVENTS, OF_FULL_FILES, OF_STATE, VerbOptions
from ddflow.cli.say import say
from ddflow.columns.names import did_you_mean
from ddflow.connectors import formats
from ddflow.connectors.files import MultiFileReader
from ddflow.connectors.formats import Format
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.row_columns import guess_schema
from ddflow.engine.replace import compute_absence_limit
from ddflow.errors import SpecError
from ddflow.plan.merge.strategy import MAKERS, Strategy
from ddflow.terminal import format_count

FORMATS: Final[Mapping[str, Format]] = {
    "debezium": formats.debezium(),
    "debezium-flat": formats.debezium(flattened=True),
    "maxwell": formats.maxwell(),
    "canal": formats.canal(),
    "wal2json": formats.wal2json(),
}
"""The message formats, by their names on the command line."""
KCAT: Final = "kcat:"


def parse_format(text: str | None, on_bad: Any = "stop") -> Format | None:
    """Parse ``--format``. Return a format of messages, or None if the option names a kind of file. Raises `SpecError`.

    >>> parse_format("kcat:debezium"), parse_format("csv")
    (dd.formats.kcat(dd.formats.debezium()), None)
    """
    word = (text or "").removeprefix(KCAT)
    if text is None or (text == word and word not in FORMATS):
        return None
    if word not in FORMATS:
        raise SpecError(f"--format {text}", "there is no such format", f"write {KCAT} with one of {list(FORMATS)}")
    of = replace(FORMATS[word], on_bad=on_bad)
    return of if text == word else formats.kcat(of)


def check_bad_message_options(format: str | None, on_bad: str, output: Path | None) -> None:
    """Raise `typer.BadParameter` for conflicting options about bad messages."""
    if on_bad != "stop" and parse_format(format) is None:
        raise typer.BadParameter("--on-bad requires a message format: pass one, such as --format debezium")
    if output is not None and on_bad == "stop":
        raise typer.BadParameter("--bad-output requires --on-bad drop: pass it too")


def report_bad_messages(messages: int, output: Path | None) -> None:
    """If no option names a file for unreadable messages, report the option that saves these messages."""
    if messages and output is None:
        say(
            f"{format_count(messages, 'message')} could not be read: --bad-output FILE saves them, with the reasons",
            err=True,
        )


def find_message_columns(given: MultiFileReader, asked: str, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Find the columns of the rows that some files of messages contain. O(bytes read).

    ``asked``: the name of the message format.

    Raises `SpecError` if no types can be found from the messages, and the same errors as `open_files`.
    """
    of = parse_format(asked)
    assert of is not None
    values = Messages(pa.table({"value": given.read_first_messages()}), "the first messages", 0).value.drop_null()
    found = of.examples(values)
    if found is None or not len(found.rows):
        if types:
            return pa.schema(list(types.items()))
        told = "its messages do not contain types" if found is None else "the first messages have no row"
        raise SpecError(f"--format {asked}", told, "declare all columns: --types id=int64,city=string")
    guessed = guess_schema(found.rows.to_pylist(), {**found.types, **types})
    columns = pa.schema([field for field in guessed if not field.name.startswith("__")])
    for name in types:
        if name not in guessed.names:
            near = did_you_mean(name, columns.names)
            say(f"columns: no examined message has the declared column {name!r}: {near}", err=True)
    return columns


INPUT, OUT = "input", "output"
"""The names of the flow's input and output; error messages show them."""
_SPANS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
_SPAN = re.compile(r"(\d+)\s*(ns|us|ms|s|min|h|d)")
_STRATEGY = re.compile(r"\s*([^=]+?)\s*=\s*(\w+)(?:\((.*)\))?\s*")
_NAMED = re.compile(r"\s*(?:\"([^\"]+)\"|([^\W\d]\w*))\s*=(?!=)(.*)", re.DOTALL)


def check_conflicting_options(ask: VerbOptions, sides: bool = True) -> None:
    """Raise `typer.BadParameter` for conflicting options."""
    if ask.tombstone is not None and ask.delete is not None:
        raise typer.BadParameter("--tombstone and --delete both define deletes: pass only one of them")
    if ask.as_json and ask.output in (None, "-"):
        raise typer.BadParameter("--json and the rows would both go to stdout: write the rows to a file with -o FILE")
    if sides and (ask.stale != "drop") != (ask.stale_output is not None):
        raise typer.BadParameter("--stale mark or side requires --stale-output FILE, and the reverse: pass both")
    if ask.whole and parse_format(ask.format) is not None:
        raise typer.BadParameter(f"--format {ask.format} reads messages, which are not full contents: use ddflow diff")
    check_bad_message_options(ask.format, ask.on_bad, ask.bad_output)
    check_distinct_outputs({"--output": ask.output, "--stale-output": ask.stale_output, "--bad-output": ask.bad_output})
    if ask.max_absent is not None:
        compute_absence_limit(ask.max_absent, 0)
    if ask.counts and not ask.whole and (given := ask.list_given_options(OF_FULL_FILES)):
        raise typer.BadParameter(f"{given[0]} works only with full files: pass --full too")
    if ask.counts and ask.whole and (given := ask.list_given_options(OF_EVENTS)):
        raise typer.BadParameter(f"{given[0]} works only with events, but --full reads full files: omit one of them")
    if ask.state is None and (given := ask.list_given_options(OF_STATE)):
        raise typer.BadParameter(f"{given[0]} works only with a state: pass --state FOLDER too")


def check_distinct_outputs(outputs: Mapping[str, Any]) -> None:
    """Raise `typer.BadParameter` if two options name the same file."""
    for one, other in combinations([name for name, file in outputs.items() if file is not None], 2):
        if str(outputs[one]) == str(outputs[other]):
            raise typer.BadParameter(f"{one} and {other} name the same file: use two files")


def parse_column_names(texts: Iterable[str] | None) -> list[str]:
    """Parse column names in texts like ``a,b``. As in CSV, quotes protect commas. Raises `SpecError`."""
    out: list[str] = []
    for text in texts or ():
        try:
            out += [name.strip() for line in csv.reader([text], skipinitialspace=True) for name in line if name.strip()]
        except csv.Error as error:
            raise SpecError(f"columns {text!r}", str(error), "put a name with a line break in quotes") from None
    return out


def parse_projection(texts: Iterable[str]) -> dict[str, str]:
    """Parse column names and ``name=expression`` texts for `Collection.project`. Raises `SpecError`."""
    out: dict[str, str] = {}
    for text in texts:
        match = _NAMED.fullmatch(text)
        parts = (
            [(match[1] or match[2], match[3].strip())]
            if match
            else [(name, name) for name in parse_column_names([text])]
        )
        for name, expression in parts:
            if name in out:
                raise SpecError(
                    "--project", f"the column {name!r} is named more than once", "name each column once", column=name
                )
            out[name] = expression
    return out


def parse_lateness(text: str | None, column: str | None, kind: pa.DataType | None) -> int | None:
    """Parse a duration into units of the time column.

    Raises `SpecError` if the duration is not a whole number of units.
    """
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    match, asked = _SPAN.fullmatch(text.strip()), f"--lateness {text}"
    if not match:
        raise SpecError(asked, "that is not a duration", "write a number, or a number with ns, us, ms, s, min, h or d")
    if kind is None or not (pat.is_timestamp(kind) or pat.is_date(kind)):
        raise SpecError(asked, f"{column!r} is {kind}, which has no unit", "write a plain number")
    unit = kind.unit if pat.is_timestamp(kind) else "d" if pat.is_date32(kind) else "ms"
    span = int(match[1]) * _SPANS[match[2]]
    if span % _SPANS[unit]:
        raise SpecError(asked, f"{column!r} counts in {unit}", f"write a whole number of {unit}")
    return span // _SPANS[unit]


def parse_merge(texts: Iterable[str] | None) -> dd.Merge | Literal["first_row"] | None:
    """Parse ``--merge``.

    The option is ``first_row``, or names a strategy for each column; ``default=`` stands for all other columns.

    Raises `SpecError`.

    >>> parse_merge(["visits=sum", "tags=union(9)", "default=first_non_null"]).strategies["tags"].limit
    9
    """
    given = list(texts or ())
    if not given:
        return None
    if given == ["first_row"]:
        return "first_row"
    columns: dict[str, Strategy] = {}
    for text in given:
        match = _STRATEGY.fullmatch(text)
        if not match or match[1] in columns:
            found = "that column is named twice" if match else "that is not COLUMN=STRATEGY"
            remedy = f"write COLUMN=STRATEGY, with a strategy of {sorted(MAKERS)}; or first_row alone"
            raise SpecError(f"--merge {text}", found, remedy)
        strategy: dict[str, Any] = {"name": match[2]}
        if match[3] is not None:
            limited = match[2] != "join_text"
            strategy |= {"limit": int(match[3])} if limited and match[3].isdecimal() else {"separator": match[3]}
        columns[match[1]] = Strategy.of_json(strategy)
    default = columns.pop("default", None)
    return dd.Merge(columns, default)


def parse_column_groups(texts: Iterable[str] | None) -> dict[str | tuple[str, ...], Sequence[str]]:
    """Parse ``--group``: first order columns, then ``=``, then the columns that belong to the order columns.

    Raises `SpecError`.

    >>> parse_column_groups(["paid_at=amount,currency"])
    {('paid_at',): ['amount', 'currency']}
    """
    out: dict[str | tuple[str, ...], Sequence[str]] = {}
    for text in texts or ():
        order, equals, columns = text.partition("=")
        if not equals or not parse_column_names([order]):
            remedy = "write ORDER=COLUMNS, such as paid_at=amount"
            raise SpecError(f"--group {text}", "it names no order column", remedy)
        out[tuple(parse_column_names([order]))] = parse_column_names([columns])
    return out


def build_spec(ask: VerbOptions, schema: pa.Schema) -> dd.Upsert:
    """Build the upsert spec that the options describe. Raises `SpecError`."""
    delete: Any = ask.delete
    if ask.tombstone is not None:
        column, equals, value = ask.tombstone.partition("=")
        delete = dd.tombstone(column.strip(), value if equals else None)
    place = schema.get_field_index(ask.time) if ask.time else -1
    choices: dict[str, Any] = {
        "tie": ask.tie,
        "late": ask.late,
        "stale": ask.stale,
        "null_key": ask.null_key,
        "versions": ask.versions,
    }
    return dd.Upsert(
        key=parse_column_names(ask.key),
        order_by=parse_column_names(ask.order_by),
        seq=ask.seq,
        time=ask.time,
        delete=delete,
        lateness=parse_lateness(ask.lateness, ask.time, schema.field(place).type if place >= 0 else None),
        noop_ignore=parse_column_names(ask.noop_ignore),
        track=None if ask.track is None else parse_column_names(ask.track),
        merge=parse_merge(ask.merge),
        groups=parse_column_groups(ask.group),
        derive=parse_projection(ask.derive or ()),
        **choices,
    )


def plan_flow(ask: VerbOptions, schema: pa.Schema) -> dd.Flow:
    """Build the flow. The flow has one input, filters, a projection, a count, and the output `OUT`.

    Raises `SpecError` or `ExpressionError` with the name of the wrong option.
    """
    flow = dd.Flow()
    rows: dd.Collection = flow.upserts(
        INPUT, schema, build_spec(ask, schema), format=parse_format(ask.format, ask.on_bad)
    )
    for predicate in ask.filter_ or ():
        rows = rows.filter(predicate)
    if ask.project:
        rows = rows.project(parse_projection(ask.project))
    if ask.counts:
        rows = rows.count(parse_column_names(ask.by), name=ask.name)
    flow.output(OUT, rows)
    return flow

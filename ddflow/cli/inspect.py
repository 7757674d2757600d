"""Show the contents of a state: the verb ``ddflow inspect``.

`ddflow/tools/inspect.py` reads the manifest and its inventory, and no data. This file formats the result as sections.
Each section has a title, a head and rows.

Guarantees: the verb prints tables on a terminal, the same lines without frames to a pipe, and one object with
``--json``.

>>> inspect.__name__, format_age(7300)
('inspect', '2 h')
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from ddflow import terminal
from ddflow.cli.arguments import State, Trust
from ddflow.cli.say import say
from ddflow.errors import shorten


def inspect(
    state: State,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Show what a state contains, without reading its data.

    The verb shows the epoch and the times, the positions of sources, the last epoch of each sink, pending events, and
    the plan. It also shows the last epochs that can be repeated, and the versions that are kept for readers. For each
    input and count it shows keys, deleted keys, versions, runs, files and bytes. If the state has several partitions,
    the verb compares them stage by stage. Long names are cut, and only the newest versions are shown; `--json` prints
    everything.

    `since` is the earliest time that can be read. The `frontier` is the earliest time that new input may have.

    Examples:

    * `ddflow inspect state/orders`

    * `ddflow inspect state/orders --json | jq .epoch`
    """
    from ddflow.tools.inspect import inspect as inspected

    found = inspected(state, trust=trust)  # type: ignore[arg-type]
    if as_json:
        say(json.dumps(found))
        return
    _show_sections(found)


def _show_sections(found: Mapping[str, Any]) -> None:
    person = sys.stdout.isatty()
    console = terminal.make_console(highlight=False, width=None if person else 1000)
    for title, head, given in build_sections(found):
        if not (rows := [[_format_value(value) for value in row] for row in given]):
            continue
        widths = [max(map(len, column)) for column in zip(head or rows[0], *rows, strict=True)]
        wide = sum(widths) + 2 * len(widths) > console.width and max(widths) > LONG
        with console.capture() as drawn:
            console.print(
                _build_vertical_table(title, head, rows) if head and wide else _build_table(title, head, rows, person)
            )
        say("\n".join(line.rstrip() for line in drawn.get().splitlines()), drawn=True)
        say()


def _build_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], person: bool) -> Table:
    """Build a table with one line per row.

    For a pipe the table has no frames, so programs such as grep and cut can process it.
    """
    table = _new_table(title, box=box.SIMPLE_HEAD if person else None, show_header=bool(head), header_style="bold")
    for i in range(len(head or rows[0])):
        number = i > 0 and all(row[i].replace(",", "").isdigit() or not row[i] for row in rows)
        table.add_column(Text(head[i] if head else ""), justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _build_vertical_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Build a vertical table, with one line per value, for rows that are wider than the terminal."""
    table = _new_table(title, show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, *values in rows:
        table.add_row(Text(name, style="bold"))
        for label, value in zip(head[1:], values, strict=True):
            if value:
                table.add_row(Text(f"  {label}", style="dim"), Text(value))
    return table


def _new_table(title: str, **look: Any) -> Table:
    return Table(title=Text(title, style="bold"), title_justify="left", pad_edge=False, padding=(0, 2, 0, 0), **look)


def _format_value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else terminal.escape_text(str(value))


LONG = 40
"""The maximum number of characters of a value in a column. Longer values may need a vertical table."""
LATEST = 5
"""The maximum number of runs of calls to show for each input, and the maximum number of versions to show."""
NAMED = 50
"""The maximum number of characters to show of a collection name. A longer name loses characters in the middle."""
_WAYS = {"events": "events", "full": "full contents", "restated": "a history, restated"}

Section = tuple[str, Sequence[str], Iterator[Sequence[Any]]]


def build_sections(found: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the title, head and rows of each table."""
    yield found["state"], (), _state_rows(found)
    yield from _attachment_sections(found)
    head: Sequence[str] = (
        "collection",
        "keys",
        "tombstones",
        "versions",
        "runs",
        "merges",
        "files",
        "size",
        "events in",
        "pending",
    )
    yield "Collections", head, _collection_rows(found)
    head = ("stage", "of its partitions", "keys", "pending", "files", "size")
    yield "Partitions", head, _partition_rows(found["parts"]) if found["partitions"] > 1 else iter(())
    yield (
        "Inputs",
        ("input", "columns", "spec"),
        (
            (
                name,
                ", ".join(f"{c} {kind}" for c, kind, _ in each["columns"] if c != "_bad"),
                _format_spec(each["spec"]),
            )
            for name, each in found["inputs"].items()
        ),
    )
    yield "How inputs were fed", ("input", "epochs", "calls", "by", "scope"), _input_feed_rows(found["inputs"])
    folders = (found["folder"] or {}).get("of", {})
    yield (
        "Outputs",
        ("output", "is", "folder"),
        (
            (name, shorten(text, NAMED), f"{found['folder']['path']}/{folders[name]}" if name in folders else "")
            for name, text in found["outputs"].items()
        ),
    )
    head = ("epoch", "call", "at", "from", "verdicts", "outputs", "digest")
    yield "Epochs that can be repeated", head, _receipt_rows(found["receipts"], _parse_time_type(found))
    yield "Versions that are kept", ("manifest", "epoch", "age", "written", "why"), _version_rows(found["versions"])


def _version_rows(versions: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Any]]:
    """Yield the newest versions and all versions with an error.

    For adjacent versions that are left out, yield one line with their number.
    """
    shown = [at for at, each in enumerate(versions) if at < LATEST or "error" in each]
    for at, until in zip(shown, [*shown[1:], len(versions)], strict=True):
        each, older = versions[at], versions[at + 1 : until]
        age = format_age(each["age"]) if "age" in each else ""
        yield each["manifest"], each.get("epoch"), age, each.get("written", ""), each.get("note", each.get("error"))
        if older:
            ends, first = older[-1], older[0]
            numbers = (_format_epochs(ends[of], first[of]) for of in ("manifest", "epoch"))
            yield (
                *numbers,
                format_age(ends["age"]),
                ends["written"],
                f"{len(older):,} versions, back to {ends['note']!r}",
            )


def _state_rows(found: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """Yield the lines that describe the state as a whole."""
    from ddflow.time import format_time

    age = next(
        (
            f", {format_age(v['age'])} ago"
            for v in found["versions"]
            if v["manifest"] == found["manifest"] and "age" in v
        ),
        "",
    )
    last, frontier, since = (
        format_time(found[name], _parse_time_type(found)) for name in ("last", "frontier", "since")
    )
    about = [
        ("epoch", f"{found['epoch']}, in manifest {found['manifest']}"),
        ("written", f"{found['written']}{age}"),
        ("by", f"{found['note']} (writer {found['writer']})"),
        ("times", f"last {last}, frontier {frontier}, readable since {since}"),
        ("files", f"{found['files']:,}, {terminal.format_size(found['bytes'])}"),
        ("events", ", ".join(f"{name} {n:,}" for name, n in found["verdicts"].items() if n) or "none"),
    ]
    if len(found["parts"]) > 1:
        about.append(("partitions", f"{found['partitions']:,}, in {found['stages']} stages"))
    if (fed := found["fed"]) is not None:
        about.append(("fed by", f"query {fed['query'] or 'of unknown id'}, up to batch {fed['batch']}"))
    yield from about


def _parse_time_type(found: Mapping[str, Any]) -> Any:
    """Parse the type of times."""
    from ddflow.columns.casts import parse_type

    return parse_type(found["time_type"])


def _attachment_sections(found: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the tables of sources and sinks. A long position is shortened to its beginning and its end."""
    columns = ("left_out", "added")
    sources = (
        (
            name,
            of["kind"],
            of["target"],
            shorten(json.dumps(of["position"]), 80),
            *(_format_columns(of[what]) for what in columns),
        )
        for name, of in found["sources"].items()
    )
    yield "Sources", ("input", "kind", "where", "position", "left out", "added"), sources
    sinks = (
        (
            name,
            *(of[what] for what in ("kind", "target", "mode", "epoch", "waiting")),
            terminal.format_size(of["waiting_bytes"]),
        )
        for name, of in found["sinks"].items()
    )
    yield "Sinks", ("output", "kind", "where", "mode", "has", "waiting", "bytes"), sinks


def _format_columns(of: Mapping[str, Sequence[str]]) -> str:
    """Format the columns of each input as text. If there are several inputs, the text names them."""
    several = {name: ", ".join(columns) for name, columns in of.items() if columns}
    return "; ".join(text if len(of) == 1 else f"{name}: {text}" for name, text in several.items())


def _collection_rows(found: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    for each in (found["inputs"], found["operators"]):
        for name, of in each.items():
            figures = [of.get(what, 0) for what in ("keys", "tombstones", "versions", "runs", "merges", "files")]
            yield (
                shorten(name, NAMED),
                *figures,
                terminal.format_size(of.get("bytes", 0)),
                of.get("arrived", ""),
                of.get("pending", ""),
            )


def _partition_rows(parts: Sequence[Mapping[str, int]]) -> Iterator[Sequence[Any]]:
    """Yield, for each stage, the minimum and the median of each figure, and the largest partition."""
    from statistics import median_low

    def row(stage: int, what: str, figures: Sequence[int]) -> Sequence[Any]:
        return stage, what, *figures[:3], terminal.format_size(figures[3])

    for stage in sorted({each["stage"] for each in parts}):
        here = {
            each["partition"]: [each[n] for n in ("keys", "pending", "files", "bytes")]
            for each in parts
            if each["stage"] == stage
        }
        figures = list(zip(*here.values(), strict=True))
        yield row(stage, "least", list(map(min, figures)))
        yield row(stage, "median", list(map(median_low, figures)))
        largest = max(here, key=lambda number: here[number][3])
        yield row(stage, f"largest, number {largest}", here[largest])


def _input_feed_rows(inputs: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """Yield the latest runs of similar calls of each input, with the newest run first.

    A last line counts the older calls.
    """
    for name, each in inputs.items():
        runs, before = each["fed"]["runs"][::-1], each["fed"]["before"]
        for run in runs[:LATEST]:
            order = " with an order" if run["order"] else ""
            yield name, _format_epochs(run["first"], run["last"]), run["calls"], _WAYS[run["way"]] + order, run["scope"]
        if older := runs[LATEST:]:
            calls = sum(run["calls"] for run in older)
            yield name, _format_epochs(older[-1]["first"], older[0]["last"]), calls, f"{len(older):,} runs of calls", ""
        if before is not None:
            for way, words in _WAYS.items():
                yield name, _format_epochs(1, before["until"]), before[way], f"{words}, only counted", ""


def _format_epochs(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _format_spec(spec: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, dict):  # a tombstone
            return " is ".join(str(each) for each in value.values())
        return "+".join(value) if isinstance(value, list) else str(value)

    return ", ".join(f"{name}={text(value)}" for name, value in spec.items())


def _receipt_rows(receipts: Sequence[Mapping[str, Any]], kind: Any) -> Iterator[Sequence[Any]]:
    from ddflow.time import format_time

    for receipt in reversed(receipts):
        for call in receipt["calls"]:
            verdicts = ", ".join(f"{name} {n:,}" for name, n in call["verdicts"].items() if n)
            outputs = ", ".join(f"{name} {each['rows']:,}" for name, each in call["outputs"].items())
            at = "" if call["call"] == "push" else format_time(call["time"], kind)
            origin = shorten(call["origin"], NAMED)
            yield receipt["epoch"], call["call"], at, origin, verdicts, outputs or "nothing", call["digest"]


def format_age(seconds: float) -> str:
    """Format an age for people to read."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (size == 60 and seconds >= size):
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"

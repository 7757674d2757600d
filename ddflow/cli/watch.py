"""Draw an output of a state on a terminal, and draw it again for each new epoch: the verb ``ddflow watch``.

The verb opens each version of the state at most once. On a pipe, and with ``--once``, it prints the current rows and
ends.

Guarantees: the verb only reads, so another process may write to the state. Polling takes at most a tenth of the time.

>>> watch.__name__
'watch'
"""

import json
import sys
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ddflow import terminal
from ddflow.cli.arguments import State, Trust
from ddflow.cli.say import say

if TYPE_CHECKING:
    from ddflow.engine.read.live_view import LiveFrame

SHARE: Final = 10
"""The minimum pause after a poll, as a multiple of the duration of the poll."""


def watch(
    state: State,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="An output or an input of the state.")],
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="The order of the rows: 'total desc'.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="The number of rows to show.")] = 20,
    every: Annotated[str, typer.Option("--every", metavar="SPAN", help="How often to check for a new epoch.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Show the current rows, and end.")] = False,
    trust: Trust = "owner",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the current rows as one JSON object, and end.")
    ] = False,
) -> None:
    """Show the first rows of an output live: draw them again after each epoch, with new rows in green.

    Control-C ends the display.

    Examples:

    * `ddflow watch state/shop by_city --by 'revenue desc'`

    * `ddflow watch state/shop by_city --once`
    """
    from rich.live import Live

    from ddflow.engine.read.live_view import LiveRows
    from ddflow.engine.snapshot import Snapshot
    from ddflow.storage.manifest import load_newest_manifest
    from ddflow.storage.opening import open_existing_store
    from ddflow.time import INT64, format_time, parse_seconds

    live, pause = LiveRows(output, by, rows), parse_seconds(every, "--every")
    options: dict[str, Any] = {"trust": trust}

    def read_output() -> "tuple[LiveFrame, int, str]":
        with Snapshot.open(state, **options) as snapshot:
            kind, epoch = snapshot.flow.time_type, snapshot.epoch
            when = f"epoch {epoch:,}" if kind == INT64 else f"{format_time(snapshot.last, kind)}, epoch {epoch:,}"
            return live.build_next_frame(snapshot.read(output)), epoch, f"{output} at {when}"

    seen, epoch, head = read_output()
    if as_json:
        held = seen.shown.to_pylist()
        say(json.dumps({"output": output, "epoch": epoch, "total": seen.total, "rows": held}, default=str))
        return
    console = terminal.make_console(highlight=False)
    if once or not sys.stdout.isatty():
        console.print(_draw_table(head, seen))
        return
    with (
        Live(_draw_table(head, seen), console=console, auto_refresh=False) as screen,
        open_existing_store(state, **options) as store,
    ):
        number = -1
        while True:
            began, manifest = monotonic(), load_newest_manifest(store)
            if manifest is not None and manifest.number != number:
                number = manifest.number
                seen, epoch, head = read_output()
                screen.update(_draw_table(head, seen), refresh=True)
            sleep(max(pause, SHARE * (monotonic() - began)))


def _draw_table(head: str, look: "LiveFrame") -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for name in look.shown.schema.names:
        table.add_column(Text(name))
    for row, new in zip(look.format_rows(), look.new, strict=True):
        table.add_row(*map(Text, row), style="green" if new else "")
    more = f"{terminal.format_count(look.total, 'row')}; {look.came:,} added, {look.went:,} removed"
    return Group(Text(head, style="bold"), table, Text(more))

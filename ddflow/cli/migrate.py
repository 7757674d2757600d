"""Replay a log under another plan and write the net difference: the verb ``ddflow migrate``.

`ddflow/tools/migrate.py` does the work. Most options are the same as those of ``diff`` and ``count``.

Guarantees: the new state and the output get their names only when both are complete. The old state is not changed.

>>> migrate.__name__
'migrate'
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddflow.cli.arguments import OF_FULL_FILES, OF_MERGES, Full, Scope, VerbOptions, with_options
from ddflow.cli.say import say, show_progress

if TYPE_CHECKING:
    from ddflow.tools.migrate import LogMarker


@with_options(
    without=OF_FULL_FILES
    | OF_MERGES
    | {"inputs", "net", "stale_output", "bad_output", "state", "epoch", "at", "skip_bad_files"}
)
def migrate(
    old: Annotated[str, typer.Argument(metavar="OLD", show_default=False, help="The existing state.")],
    new: Annotated[str, typer.Argument(metavar="NEW", show_default=False, help="The folder of the new state.")],
    log: Annotated[
        list[str],
        typer.Argument(metavar="LOG", show_default=False, help="All files of the log, in order, or folders of files."),
    ],
    ask: VerbOptions,
    counts: Annotated[
        bool, typer.Option("--count", help="Count rows, like `ddflow count`; --by implies --count.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="If the columns have changed, write the complete new contents.")
    ] = False,
    full: Full = None,
    scope: Scope = None,
) -> None:
    """Replay a log into a new state under another plan, and write the net difference between both outputs.

    A state keeps the plan that created it. For another key, order, filter or projection, the verb replays the log into
    a new state. Like in `ddflow diff --state NEW`, each file is one epoch. Only the net difference is written. The
    difference retracts the rows that only the old output has, and asserts the rows that only the new output has. All of
    these updates have the last time of the new state, which is greater than all times of the old state. Readers of the
    old output ingest this file, and then the updates of the new state.

    OLD records how it was fed, and the log is replayed in the same way. If OLD was fed full files by `ddflow replace`,
    the log must have one file for each of them. If the events are now in other files than before, name the full files
    with `--full`.

    Sources and sinks stay with OLD. NEW has no positions of sources; attach its sinks with `ddflow sync --adopt`. NEW
    keeps as much history as OLD, unless you pass `--retain`; in epoch mode, the history of NEW begins at its last time.

    The old state is not changed. NEW must not exist yet. If the replay fails, NEW is removed completely.

    Examples:

    * `ddflow migrate state/orders state/orders2 log/ --key id,region --order-by updated_at -o changes.parquet`
    """
    ask = dataclasses.replace(ask, inputs=log, counts=counts or ask.by is not None, state=new)
    _replay_log(ask, old, whole, full, scope)


def _replay_log(ask: VerbOptions, old: str, whole: bool, full: list[str] | None, scope: str | None) -> None:
    """Replay the log, and report the result."""
    from ddflow.cli.plan import OUT, check_conflicting_options

    check_conflicting_options(ask, sides=False)

    from ddflow.cli.file_run import FileFeed, FileRun
    from ddflow.cli.log import mark_full_content_files
    from ddflow.cli.output import WrittenEpochs
    from ddflow.cli.plan import INPUT
    from ddflow.tools.migrate import MigrationOptions, replay_migration

    request, new = FileRun(ask), str(ask.state)
    files, flow, out = request.files, request.flow, request.open_output()
    parts = mark_full_content_files(files.files, full, scope)

    def feed(engine: Any, least: int, told: LogMarker) -> None:
        with show_progress(files.rows) as tick:
            log = FileFeed(request, engine, tick, WrittenEpochs(engine.epoch))
            for step in log.ingest_files(list(told(INPUT, parts)), least):
                tick(0, step[OUT].num_rows)

    trust: Any = ask.trust
    options = MigrationOptions(output=OUT, whole=whole, retain=ask.retain, memory=ask.memory, trust=trust)
    with closing(files), replay_migration(old, new, flow, feed, options) as done:
        with out:
            out.write(done.tables[OUT])
        about = {
            "old": old,
            "new": new,
            "epoch": done.epoch,
            "last": done.last,
            "written": done.tables[OUT].num_rows,
            "whole": bool(done.whole or done.new),
            "output": ask.output,
            "left": done.left,
        }
        if ask.as_json:
            say(json.dumps(about))
        else:
            what = "rows of the new output" if about["whole"] else f"updates, net, against {old}"
            say(f"{new} is at epoch {done.epoch:,}: {about['written']:,} {what}", err=True)
            for name in done.left:
                say(f"{name} stays attached to {old}; to move its target to {new}: ddflow sync --adopt", err=True)

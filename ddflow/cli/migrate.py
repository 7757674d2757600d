"""Replay a log under another plan and write the net difference: the verb ``ddflow migrate``.

`ddflow/tools/migrate.py` does the work. The options are those that ``diff`` and ``count`` have.

Guarantees: the new state and the output appear only when both are complete. The old state is not changed.

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
    old: Annotated[str, typer.Argument(metavar="OLD", show_default=False, help="The state that there is.")],
    new: Annotated[str, typer.Argument(metavar="NEW", show_default=False, help="Where the new state is to be.")],
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG", show_default=False, help="All files of the log, in their order, or folders of them."
        ),
    ],
    ask: VerbOptions,
    counts: Annotated[bool, typer.Option("--count", help="Count, as `ddflow count` does; --by says so too.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Where the columns have changed, write the new contents whole.")
    ] = False,
    full: Full = None,
    scope: Scope = None,
) -> None:
    """Replay a log into a new state under another plan, and write the net difference to the old one.

    A state keeps the plan that it was made by. For another key, order, filter or projection the log is replayed into a
    new state, as by `ddflow diff --state NEW`: each file is an epoch. Only the net difference is written: rows of the
    old output that are not in the new one leave, the others enter, at the new state's last time, which is above all
    times of the old one. Followers of the old output take in this file and then the updates of the new state.

    The log is replayed as OLD was fed; OLD records that. If `ddflow replace` fed it full files, the log has one file
    for each. If its events were cut into files otherwise, `--full` names the full ones.

    Sources and sinks stay with OLD: NEW has no positions, and its sinks begin with `ddflow sync --adopt`. NEW keeps as
    much history as OLD does, unless `--retain` says how much; in epoch mode from its last time on.

    The old state is not changed, and NEW must not exist yet. If anything fails, nothing of NEW is left.

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
            what = "rows, whole," if about["whole"] else "updates, net,"
            say(f"{new} is at epoch {done.epoch:,}: {about['written']:,} {what} of {old}", err=True)
            for name in done.left:
                say(f"{name} stays attached to {old}; to give its target to {new}: ddflow sync --adopt", err=True)

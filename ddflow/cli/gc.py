"""Delete files that no version of a state names, and with ``--forget`` also history and deleted rows: ``ddflow gc``.

`ddflow/engine/garbage.py` and `ddflow/engine/compact.py` do the work.

Guarantees: files of kept versions stay, and also files of a version that a writer is making.

>>> gc.__name__
'gc'
"""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ddflow.cli.arguments import State, Trust
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import format_size


def gc(
    state: State,
    grace: Annotated[
        str, typer.Option("--grace", metavar="SPAN", help="How long a version outlives its successor, for readers.")
    ] = "60s",
    orphans: Annotated[
        str, typer.Option("--orphans", metavar="SPAN", help="How old a file is that nobody names before it goes.")
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be deleted, and delete nothing.")] = False,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="First compact the state to the present, and erase rows that are deleted."),
    ] = False,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="What was done as one JSON object.")] = False,
) -> None:
    """Delete the versions of a state whose time is over, and files that no version names.

    A writer does this by itself, when it opens the state and after its commits. Run it for a state that nobody
    opens, and after a crash. Writers and readers may continue meanwhile. The two newest versions always stay. Files
    that were put after the newest version stay, because they may be of an epoch under way. If the newest version,
    or one that is to be kept, cannot be read, nothing is deleted.

    `--forget` makes people forgotten: history goes, and every byte of rows that were deleted or replaced, in all files
    of the state. Older versions and stored epochs go with them, so no epoch before can be given again. Stop the writer
    first: it is fenced. Copies, folders of outputs and caches of other machines are yours to clean.

    Examples:

    * `ddflow gc state/orders --dry-run`

    * `ddflow gc state/orders --forget`
    """
    from ddflow.time import parse_seconds

    spans = parse_seconds(grace, "--grace"), parse_seconds(orphans, "--orphans")
    if forget and dry_run:
        raise typer.BadParameter("--forget rewrites the state, and --dry-run writes nothing: give one of them")
    if forget:
        _erase_deleted_rows(state, trust)

    from ddflow.engine.garbage import gc

    choices: dict[str, Any] = {"dry_run": dry_run, "trust": trust}
    done = gc(state, grace=spans[0], orphans=spans[1], **choices)
    if as_json:
        say(json.dumps({"state": state, "dry_run": dry_run, "forgot": forget} | asdict(done)))
        return

    if forget:
        say(f"{state} is compacted to the present, and holds nothing of rows that were deleted or replaced")
    verb = "would delete" if dry_run else "deleted"
    say(f"{verb} {len(done.manifests):,} versions and {done.files:,} files, {format_size(done.bytes)}")
    if done.outputs:
        say(f"{verb} {len(done.outputs):,} files that failed commits left among the outputs")
    if done.waiting:
        size = format_size(done.bytes_waiting)
        say(f"left {done.waiting:,} files, {size}, that no version names: they may be of an epoch under way")
    say(f"kept versions {', '.join(map(str, done.kept)) or 'none'}")


def _erase_deleted_rows(state: str, trust: str) -> None:
    from ddflow.engine.compact import compact
    from ddflow.engine.engine import Flow
    from ddflow.engine.snapshot import find_version
    from ddflow.plan.text.codec import rebuild_plan
    from ddflow.storage.opening import open_existing_store

    with open_existing_store(state, trust=trust, readonly=False) as store:
        flow = Flow.of(rebuild_plan(find_version(store).plan, store.where))
        with show_amount_progress("compacting") as tick, flow.open(store) as engine:
            compact(engine.calls, forget=True, look=tick)

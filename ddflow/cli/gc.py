"""Delete files that no version of a state names, and with ``--forget`` also history and deleted rows: ``ddflow gc``.

`ddflow/engine/garbage.py` and `ddflow/engine/compact.py` do the work.

Guarantees: files of kept versions stay. The files of a version that a writer has not published yet are also kept.

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
        str,
        typer.Option(
            "--grace", metavar="SPAN", help="Keep a replaced version for this long, so that its readers can finish."
        ),
    ] = "60s",
    orphans: Annotated[
        str,
        typer.Option("--orphans", metavar="SPAN", help="Delete a file that no version names once it is this old."),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be deleted.")] = False,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="First erase history and all bytes of deleted and replaced rows, to erase personal data."
        ),
    ] = False,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Delete expired versions of a state, and files that no version names.

    A writer deletes such versions and files itself, when it opens the state and after its commits. Run the verb for a
    state that no writer opens, and after a crash. Writers and readers may continue meanwhile. The two newest versions
    always stay. Files that were written after the newest version stay, because they may belong to an epoch that is not
    committed yet. If the newest version, or another version to keep, cannot be read, nothing is deleted.

    `--forget` serves requests to erase personal data. The option erases the history, and every byte of deleted or
    replaced rows, from all files of the state. Older versions and stored epochs are deleted too, so you cannot repeat
    earlier epochs. Stop the writer first, because the verb fences it. You must clean copies, folders of outputs and
    caches of other machines yourself.

    Examples:

    * `ddflow gc state/orders --dry-run`

    * `ddflow gc state/orders --forget`
    """
    from ddflow.time import parse_seconds

    spans = parse_seconds(grace, "--grace"), parse_seconds(orphans, "--orphans")
    if forget and dry_run:
        raise typer.BadParameter("--forget rewrites the state, but --dry-run writes nothing: pass only one of them")
    if forget:
        _erase_deleted_rows(state, trust)

    from ddflow.engine.garbage import gc

    choices: dict[str, Any] = {"dry_run": dry_run, "trust": trust}
    done = gc(state, grace=spans[0], orphans=spans[1], **choices)
    if as_json:
        say(json.dumps({"state": state, "dry_run": dry_run, "forgot": forget} | asdict(done)))
        return

    if forget:
        say(f"{state} is compacted to the present, and no longer contains deleted or replaced rows")
    verb = "would delete" if dry_run else "deleted"
    say(f"{verb} {len(done.manifests):,} versions and {done.files:,} files, {format_size(done.bytes)}")
    if done.outputs:
        say(f"{verb} {len(done.outputs):,} files that failed commits left in the folder of outputs")
    if done.waiting:
        size = format_size(done.bytes_waiting)
        say(f"kept {done.waiting:,} files, {size}, that no version names: an unfinished epoch may need them")
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

"""Write the difference between outputs and their targets to the targets: the verb ``ddflow sync``.

`Engine.sync` and `ddflow/partitions/driver_epochs.py` do the work. Without ``--yes`` this verb only reports the rows to
delete, change and add.

Guarantees: without ``--yes`` nothing is written. A table that another writer owns changes only with ``--adopt``.

>>> sync.__name__
'sync'
"""

import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ddflow.cli.arguments import Trust
from ddflow.cli.run import FlowFile, Modes, OwnState, To, load_flow, make_sinks
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import escape_text, format_count

if TYPE_CHECKING:
    from ddflow.engine.run.sync import Synced

LISTED: Final = 20
"""The maximum number of keys of deleted or changed rows to list for each target."""


def sync(
    flow: FlowFile,
    state: OwnState,
    to: To = None,
    mode: Modes = None,
    detach: Annotated[
        list[str] | None,
        typer.Option(
            "--detach",
            metavar="NAME",
            show_default=False,
            help="Forget a sink and the updates that wait for it, or a source and its position. If a sink and a source "
            "have that name: sink:NAME or source:NAME. May be repeated.",
        ),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over a table that no state wrote, or that another state wrote.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write the changes. Without it, only report them.")] = False,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Write the difference between a state's outputs and their target tables to the tables.

    Use this verb after a rollback, after a target was restored from a backup, or to take over a table.

    Examples:

    * `ddflow sync flow.py --state state/shop --to by_city=duckdb:shop.duckdb`

    * `ddflow sync flow.py --state state/shop --to by_city=duckdb:shop.duckdb --adopt --yes`
    """
    from ddflow.partitions.commit import DriverOptions, EpochDriver
    from ddflow.partitions.driver_epochs import sync_state

    targets, given = make_sinks(to, mode), load_flow(flow)
    if not targets and not detach:
        raise typer.BadParameter("--to: pass at least one sink")
    choices: dict[str, Any] = {"trust": trust}
    forget = tuple(detach or () if yes else ())
    with show_amount_progress("comparing and writing" if yes else "comparing") as tick:
        if _count_partitions(state, trust) > 1:
            with closing(EpochDriver.open(given, state, DriverOptions(**choices))) as driver:
                done = sync_state(driver, targets, adopt, not yes, forget, tick)
        else:
            with given.open(state, **choices) as engine:
                done = engine.sync(targets, adopt=adopt, dry=not yes, look=tick)
                engine.detach(*forget)
    if as_json:
        counts = {name: dict(zip(each._fields[:3], each[:3], strict=True)) for name, each in done.items()}
        say(json.dumps({"done": yes} | counts))
        return
    for name in detach or ():
        say(f"{name} {'is' if yes else 'would be'} detached")
    for name, each in done.items():
        did = "deleted" if yes else "would be deleted"
        said = f"{format_count(each.deleted, 'row')} {did}, {each.changed:,} changed, {each.added:,} added"
        say(f"{name} ({targets[name].target}): {said}")
        _report_changed_keys(each)
    if not yes:
        say("nothing was written; to write the changes, add --yes", err=True)


def _report_changed_keys(found: "Synced") -> None:
    """List the keys of the rows that are deleted or changed."""
    keys = found.keys
    if keys is None or not keys.num_columns:
        return
    for number, row in enumerate(keys.slice(0, LISTED).to_pylist()):
        verb = "deleted" if number < keys.num_rows - found.changed else "changed"
        say(f"  {verb}: {escape_text(', '.join(f'{column}={value!r}' for column, value in row.items()))}")
    if keys.num_rows > LISTED:
        say(f"  and {keys.num_rows - LISTED:,} more keys")


def _count_partitions(state: str, trust: str) -> int:
    """Count the partitions of a state."""
    from ddflow.storage.manifest import load_newest_manifest
    from ddflow.storage.opening import open_existing_store

    with open_existing_store(state, trust=trust) as store:
        manifest = load_newest_manifest(store)
        return 1 if manifest is None else manifest.partitions

"""Read and check every byte of a state: the verb ``ddflow fsck``.

`ddflow/tools/fsck.py` does the work.

Guarantees: the exit code is 0 if the state has no damage, and 1 otherwise. The report lists all damage, file by file.

>>> fsck.__name__
'fsck'
"""

import json
from typing import Annotated

import typer

from ddflow.cli import REFUSED
from ddflow.cli.arguments import State, Trust
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import format_size


def fsck(
    state: State,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Check every byte of a state, and that its files agree.

    The verb reads every manifest that is kept, and every file that a manifest names. The verb checks lengths, checksums
    and columns, the order of rows, and the identities and hashes of rows. The counts of keys, deleted keys and events
    are compared. Each fault is listed with its file. A file that no manifest names counts as garbage (see `ddflow gc`).
    The verb also lists files that ddflow did not write. Nothing is written, and a writer may continue meanwhile.

    If the state has a fault, restore the folder from a backup, go back with `ddflow rollback`, or replay the log into a
    new state.

    Examples:

    * `ddflow fsck state/orders`

    * `ddflow fsck s3://bucket/orders --json`
    """
    from ddflow.cli.words import format_for_shell
    from ddflow.tools.fsck import fsck as checked

    with show_amount_progress("reading", None, format_size) as tick:
        report = checked(state, trust=trust, look=tick)  # type: ignore[arg-type]
    if not as_json:
        report.where = state  # the address as the user typed it
    say(json.dumps(report.to_dict()) if as_json else format_for_shell(report.text))
    if not report.ok:
        raise typer.Exit(REFUSED)

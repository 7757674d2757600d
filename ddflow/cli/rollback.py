"""Make an older version of a state its newest: the verb ``ddflow rollback``.

`ddflow/tools/rollback.py` does the work.

Guarantees: nothing happens without consent, at the terminal or by ``--yes``. Nothing is deleted.

>>> rollback.__name__
'rollback'
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddflow.cli.arguments import State, Trust
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import format_size

if TYPE_CHECKING:
    from ddflow.tools.rollback import OldVersion


def rollback(
    state: State,
    to_epoch: Annotated[
        int | None,
        typer.Option(
            "--to-epoch",
            metavar="N",
            show_default=False,
            help="Back to the state after this epoch. Without: the last whole version before the newest.",
        ),
    ] = None,
    versions: Annotated[bool, typer.Option("--list", help="List the versions that are kept, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="What was done, or the list, as one JSON object.")] = False,
) -> None:
    """Go back to an older version of a state, when the newest is damaged or was a mistake.

    All files of that version are read, compared with their checksums, and copied. The copy is published as a new
    version, with the next number. Nothing is deleted; a damaged manifest stays. A writer is fenced. Later epochs no
    longer exist and can be given again. Their files in a folder of outputs are hidden and listed, and `ddflow gc`
    deletes them a day later.

    The two newest versions are kept, others for a minute or for what `grace=` says. For an older version use a copy, or
    replay the log.

    Examples:

    * `ddflow rollback state/orders --list`

    * `ddflow rollback state/orders --to-epoch 1 --yes`
    """
    from ddflow.tools import rollback as tool

    choices: dict[str, Any] = {"trust": trust}
    found = tool.list_versions(state, **choices)
    if versions:
        if as_json:
            say(json.dumps([_describe_version(each) for each in found]))
        else:
            for each in found:
                say(_format_version(each))
        return
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("going back loses what was committed since: say --yes, or answer at a terminal")
        for each in found:
            say(_format_version(each), err=True)
        where = "the last whole version before the newest" if to_epoch is None else f"epoch {to_epoch}"
        typer.confirm(f"go back to {where}, and lose all later epochs?", abort=True, err=True)
    with show_amount_progress("reading and copying", None, format_size) as tick:
        done = tool.rollback(state, to_epoch, **choices, look=tick)
    _report_result(state, done, as_json)


def _report_result(state: State, done: Any, as_json: bool) -> None:
    """Report the result."""
    if as_json:
        say(
            json.dumps(
                {
                    "state": state,
                    "epoch": done.manifest.epoch,
                    "manifest": done.manifest.number,
                    "version": done.version,
                    "passed": done.passed,
                    "hidden": done.hidden,
                    "ahead": done.ahead,
                }
            )
        )
        return
    if done.manifest.number == done.version:
        say(f"{state} is at epoch {done.manifest.epoch} already (manifest {done.version})")
    else:
        say(
            f"{state} is at epoch {done.manifest.epoch} again: manifest {done.manifest.number} says what "
            f"{done.version} said"
        )
    for wrong in done.passed:
        say(f"passed over: {wrong}")
    for path in done.hidden:
        say(f"hidden, of an epoch that is no more: {path}")
    for name, source in done.manifest.sources.items():
        say(f"the source {name!r} ({source.target}) is read from its position of epoch {done.manifest.epoch} on")
    for name, epoch in done.ahead.items():
        ends = f"may have epochs up to {epoch}, which are no more"
        say(f"the sink of {name!r} {ends}: ddflow sync gives it the difference")


def _describe_version(version: OldVersion) -> dict[str, Any]:
    of = version.manifest
    about = {} if of is None else {"epoch": of.epoch, "written": _format_write_time(of.written), "note": of.note}
    return {"manifest": version.number, **about, "wrong": version.wrong}


def _format_version(version: OldVersion) -> str:
    of = version.manifest
    about = "" if of is None else f"  epoch {of.epoch:>8}  {_format_write_time(of.written)}  {of.note}"
    return f"manifest {version.number:>8}{about}" + (f"  DAMAGED: {version.wrong}" if version.wrong else "")


def _format_write_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")

"""Make an older version of a state its newest: the verb ``ddflow rollback``.

`ddflow/tools/rollback.py` does the work.

Guarantees: the verb changes the state only after consent, at the terminal or by ``--yes``. It deletes nothing.

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
            help="Go back to the state after this epoch. Without it, to the last intact version before the newest.",
        ),
    ] = None,
    versions: Annotated[bool, typer.Option("--list", help="Only list the versions that are kept.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result, or the list, as JSON.")] = False,
) -> None:
    """Go back to an older version of a state, if the newest version is damaged or was a mistake.

    All files of the older version are read, compared with their checksums, and copied. The copy is published as a new
    version, with the next number. Nothing is deleted, not even a damaged manifest. A writer is fenced. Later epochs no
    longer exist, so you can pass their input again. The files of these epochs in a folder of outputs are hidden and
    listed, and `ddflow gc` deletes them a day later.

    The two newest versions are always kept. Older versions are kept for a minute, or as long as `grace=` says. For a
    version that is no longer kept, use a backup, or replay the log.

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
            raise typer.BadParameter("a rollback loses all later epochs: pass --yes, or answer at a terminal")
        for each in found:
            say(_format_version(each), err=True)
        where = "the last intact version before the newest" if to_epoch is None else f"epoch {to_epoch}"
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
        say(f"{state} is already at epoch {done.manifest.epoch} (manifest {done.version})")
    else:
        say(
            f"{state} is at epoch {done.manifest.epoch} again: manifest {done.manifest.number} has the contents of "
            f"manifest {done.version}"
        )
    for wrong in done.passed:
        say(f"skipped: {wrong}")
    for path in done.hidden:
        say(f"hidden, because its epoch no longer exists: {path}")
    for name, source in done.manifest.sources.items():
        say(f"the source {name!r} ({source.target}) is read again from its position at epoch {done.manifest.epoch}")
    for name, epoch in done.ahead.items():
        ends = f"may have epochs up to {epoch}, which no longer exist"
        say(f"the sink of {name!r} {ends}: ddflow sync writes the difference to it")


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

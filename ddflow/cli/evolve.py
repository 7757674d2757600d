"""Widen or add columns of a state, or drop outputs and inputs: the verb ``ddflow evolve``.

`ddflow/partitions/evolve.py` does the work. This file parses the options and reports the result.

Guarantees: if a run stops anywhere, the state is either unchanged or completely evolved.

>>> evolve.__name__
'evolve'
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddflow.cli.arguments import Input, Rewriting, State, Trust
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import format_count, format_size

if TYPE_CHECKING:
    from ddflow.partitions.evolve import EvolutionResult

Types = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        metavar="COLUMN=TYPE,...",
        show_default=False,
        help="The columns to change or add, each with its new type. May be repeated.",
    ),
]
DropOutput = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-output",
        metavar="NAME",
        show_default=False,
        help="An output to remove, with everything that only this output needs. May be repeated.",
    ),
]
DropInput = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-input",
        metavar="NAME",
        show_default=False,
        help="An input to remove. No remaining output may read it. May be repeated.",
    ),
]


def evolve(
    state: State,
    types: Types = None,
    drop_output: DropOutput = None,
    drop_input: DropInput = None,
    input: Input = None,
    memory: Rewriting = None,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Rewrite a state so that columns have wider types, or remove outputs and inputs from it.

    A column of a source may outgrow its type: a number gets a fraction, an id gets letters. The state refuses such
    values until this verb has rewritten it. The verb converts and hashes all rows, counts, history and waiting events
    again. The result is another version of the same epoch. Later updates have the new types.

    Allowed changes of a column:

    * an integer: to wider integer, decimal(p,s), double, text. Every value must fit the new type

    * a decimal: to a decimal with more digits, text. A float: to a double

    * a date: to timestamp, text. A timestamp: to a timestamp with a finer unit

    * a boolean, a time of day, a UUID: to text

    A column that the state lacks is added, and is null in all existing rows. A name that is similar to an existing name
    is refused, because it may be misspelled. Keys and the columns that decide which event wins never change. If an
    expression of the plan would get another meaning, the verb refuses the change and names the expression. Wider
    integers, floats and large text need no rewriting: opening the state with these types is enough.

    `--drop-output` removes an output, its stored updates, and the contents of operators that only this output needs.
    `ddflow gc` frees the files. Open the state with a flow without the output. Inputs stay, even without outputs. An
    output with a sink is refused until `ddflow sync --detach` forgets the sink, whose table does not change.

    `--drop-input` removes an input with its rows, its waiting events, its `.bad`, `.events` and `.stale` outputs, and
    the position of its source. Drop the outputs that read the input in the same call. Counts of verdicts stay.

    A writer is fenced. If a writer commits first, the writer wins, and nothing changes here. If a plan has Python
    functions, evolve it from Python: `dd.evolve(state, flow=flow)`.

    Examples:

    * `ddflow evolve state/orders --types 'amount=decimal(12,2)'`

    * `ddflow evolve state/outages --types outage_id=string,customers=double`

    * `ddflow evolve state/shop --drop-output by_city`

    * `ddflow evolve state/shop --drop-output customers --drop-input customers`
    """
    if bool(types) == bool(drop_output or drop_input):
        raise typer.BadParameter(
            "pass either columns to change (--types), or names to remove (--drop-output, --drop-input)"
        )
    if not types and input is not None:
        raise typer.BadParameter("--input names the input of --types; to remove an input, pass --drop-input NAME")

    from ddflow.columns.casts import parse_types
    from ddflow.partitions.evolve import evolve

    choices: dict[str, Any] = {"trust": trust, "memory": memory}
    given: Any = parse_types(types) if types else None
    given = given if input is None else {input: given}
    with show_amount_progress("rewriting") as tick:
        done = evolve(state, given, drop_outputs=drop_output or (), drop_inputs=drop_input or (), **choices, look=tick)
    if as_json:
        say(json.dumps({"state": state} | done._asdict()))
    else:
        _report_result(state, done)


def _report_result(state: str, done: EvolutionResult) -> None:
    """Report the result."""
    from ddflow.storage.address import mask_address

    for name, columns in done.columns.items():
        for column, (was, now) in columns.items():
            say(f"{column} of {name} is {now}" + (" (new)" if was is None else f" (before: {was})"))
    for name in done.outputs:
        say(f"{name} is no longer an output of {state}")
    for name in done.inputs:
        say(f"{name} is no longer an input of {state}")
    for name in done.unused:
        say(f"no output reads the input {name} now; it stays, and its events still get verdicts and are counted")
        say(f"to remove it too: ddflow evolve {shlex.quote(mask_address(state))} --drop-input {shlex.quote(name)}")
    if done.outputs or done.inputs:
        say(f"ddflow gc frees {format_size(done.freed)} when it deletes the older versions (epoch {done.epoch})")
    elif done.columns:
        moved = f"{format_count(done.versions, 'row')} and {format_count(done.pending, 'waiting event')} rewritten"
        say(f"{state}: {moved} (epoch {done.epoch})")
    else:
        say(f"{state} already has these columns (epoch {done.epoch})")

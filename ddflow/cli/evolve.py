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
        help="The columns that change, each with its new type. May be repeated.",
    ),
]
DropOutput = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-output",
        metavar="NAME",
        show_default=False,
        help="An output to take out, with all that only it needs. May be repeated.",
    ),
]
DropInput = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-input",
        metavar="NAME",
        show_default=False,
        help="An input to take out, of which no output is made that stays. May be repeated.",
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
    as_json: Annotated[bool, typer.Option("--json", help="What was done as one JSON object.")] = False,
) -> None:
    """Rewrite a state so that columns have wider types, or take outputs and inputs out of it.

    A feed's column may grow out of its type: a number gets a fraction, an id gets letters. The state refuses such
    values, so this rewrites it. Rows, counts, history and waiting events are cast and hashed again, and published as
    another version of the same epoch. Updates from then on carry the new type, retractions too.

    What a column may become:

    * an integer: a wider integer, decimal(p,s), double, text. Every value must fit: of 64 bits, only some are a double

    * a decimal: one of more digits, text. A float: double

    * a date: timestamp, text. A timestamp: one of a finer unit

    * a boolean, a time of day, a UUID: text

    A column that the state has not is added, null in all rows, and stays. A name near another's is refused, because it
    may be misspelled. Keys and the columns that decide who wins never change. Where an expression of the plan would
    mean something else, it is named. Wider integers, floats and large text need no rewriting: they are also taken when
    the state is opened with them.

    `--drop-output` drops an output, with what its operators hold for no other output, and its updates that are kept.
    `ddflow gc` frees their files. Then a flow without the output opens the state. An output that has a sink is refused
    until `ddflow sync --detach` forgets the sink, whose table stays as it is. Inputs stay, also those that no output is
    made of any more.

    `--drop-input` drops an input, with its rows, its waiting events, its `.bad`, `.events` and `.stale` outputs, and
    the position of its source, and with outputs that are made of it. What became of its events stays counted.

    A writer is fenced. If a writer commits first, it wins, and nothing happens here. A plan with functions of one's own
    is evolved from Python: `dd.evolve(state, flow=flow)`.

    Examples:

    * `ddflow evolve state/orders --types 'amount=decimal(12,2)'`

    * `ddflow evolve state/outages --types outage_id=string,customers=double`

    * `ddflow evolve state/shop --drop-output by_city`

    * `ddflow evolve state/shop --drop-output customers --drop-input customers`
    """
    if bool(types) == bool(drop_output or drop_input):
        raise typer.BadParameter("give columns that change (--types), or what goes (--drop-output, --drop-input)")
    if not types and input is not None:
        raise typer.BadParameter("--input says whose columns --types are; an input that goes is --drop-input NAME")

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
            say(f"{column} of {name} is {now}" + (", and is new" if was is None else f", and was {was}"))
    for name in done.outputs:
        say(f"{name} is no output of {state} any more")
    for name in done.inputs:
        say(f"{name} is no input of {state} any more")
    for name in done.unused:
        say(f"no output is made of the input {name} now; it stays, and its events are judged and counted as before")
        say(f"to take it out, too: ddflow evolve {shlex.quote(mask_address(state))} --drop-input {shlex.quote(name)}")
    if done.outputs or done.inputs:
        say(f"{format_size(done.freed)} are free once ddflow gc has deleted the versions before (epoch {done.epoch})")
    elif done.columns:
        moved = f"{format_count(done.versions, 'row')} and {format_count(done.pending, 'waiting event')} rewritten"
        say(f"{state}: {moved} (epoch {done.epoch})")
    else:
        say(f"{state} has these columns already (epoch {done.epoch})")

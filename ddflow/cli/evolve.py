"""``ddflow evolve``: columns of a state become wider, or more, and the state is rewritten for it.

Invariant: a run that is stopped anywhere leaves the state as it was, or evolved.  The work is in
`ddflow.partitions.evolve`.

>>> evolve.__name__
'evolve'
"""

import json
from typing import Annotated, Any

import typer

from ddflow.cli.arguments import Input, Rewriting, State, Trust
from ddflow.cli.say import say
from ddflow.terminal import counted


def evolve(
    state: State,
    types: Annotated[
        list[str],
        typer.Option(
            "--types",
            metavar="COLUMN=TYPE,...",
            show_default=False,
            help="The columns that change, each with its new type. May be repeated.",
        ),
    ],
    input: Input = None,
    memory: Rewriting = None,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="What was done as one JSON object.")] = False,
) -> None:
    """Rewrite a state so that columns have wider types.

    A feed's column may grow out of its type: a number gets a fraction, an id gets letters. The state refuses such
    values, so this rewrites it. Rows, counts, history and waiting events are cast and hashed again, and published as
    another version of the same epoch. Updates from then on carry the new type, retractions too.

    What a column may become:

    * an integer: a wider integer, decimal(p,s), double, text. Every value must fit: of 64 bits, only some are a double

    * a decimal: one of more digits, text. A float: double

    * a date: timestamp, text. A timestamp: one of a finer unit

    * a boolean, a time of day, a UUID: text

    A column that the state has not is added, null in all rows. Keys and the columns that decide who wins never change.
    Where an expression of the plan would mean something else, it is named, and nothing happens. Wider integers, floats
    and large text need no rewriting: they are also taken when the state is opened with them.

    A writer is fenced. If a writer commits first, it wins, and nothing happens here. A plan with functions of one's own
    is evolved from Python: `dd.evolve(state, flow=flow)`.

    Examples:

    * `ddflow evolve state/orders --types 'amount=decimal(12,2)'`

    * `ddflow evolve state/outages --types outage_id=string,customers=double`
    """
    from ddflow.cli.progress import watching
    from ddflow.columns.type_text import parse_types
    from ddflow.partitions.evolve import evolve

    choices: dict[str, Any] = {"trust": trust, "memory": memory}
    given: Any = parse_types(types)
    with watching("rewriting") as tick:
        done = evolve(state, given if input is None else {input: given}, **choices, look=tick)
    if as_json:
        say(json.dumps({"state": state} | done._asdict()))
        return
    for name, columns in done.columns.items():
        for column, (was, now) in columns.items():
            say(f"{column} of {name} is {now}" + (", and is new" if was is None else f", and was {was}"))
    if done.columns:
        moved = f"{counted(done.versions, 'row')} and {counted(done.pending, 'waiting event')} rewritten"
        say(f"{state}: {moved} (epoch {done.epoch})")
    else:
        say(f"{state} has these columns already (epoch {done.epoch})")

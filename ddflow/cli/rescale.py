"""Change the number of partitions of a state: the verb ``ddflow rescale``.

`ddflow/partitions/rescale.py` does the work.

Guarantees: results do not change. If a run stops anywhere, the state is either unchanged or completely rescaled.

>>> rescale.__name__
'rescale'
"""

import json
from typing import Annotated, Any

import typer

from ddflow.cli.arguments import Rewriting, State, Trust
from ddflow.cli.say import say, show_amount_progress
from ddflow.terminal import format_count


def rescale(
    state: State,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", show_default=False, help="How many partitions it shall have.")
    ],
    memory: Rewriting = None,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="What was done as one JSON object.")] = False,
) -> None:
    """Split or join the partitions of a state.

    A state on Spark has as many partitions as its epochs have tasks. A state of `ddflow diff --state` or `flow.open`
    has one. The rows, history and waiting events of each new partition are cut out of the old ones' files, merged, and
    written to new files. The result is published as another version of the same epoch; until then the state is as it
    was. A writer is fenced. If a writer commits first, it wins, and nothing happens here.

    A plan with functions of one's own is rescaled from Python: `ddflow.partitions.rescale.rescale(state, 64,
    flow=flow)`.

    Examples:

    * `ddflow rescale state/orders --partitions 64`

    * `ddflow rescale state/orders --partitions 1 --memory 2GB`
    """
    from ddflow.partitions.rescale import rescale

    choices: dict[str, Any] = {"trust": trust, "memory": memory}
    with show_amount_progress("moving") as tick:
        done = rescale(state, partitions, **choices, look=tick)
    if as_json:
        say(json.dumps({"state": state} | done._asdict()))
    elif done.before == done.partitions:
        say(f"{state} has {format_count(done.partitions, 'partition')} already (epoch {done.epoch})")
    else:
        say(
            f"{state} has {format_count(done.partitions, 'partition')}, and had {done.before:,}: "
            f"{format_count(done.versions, 'row')} and {format_count(done.pending, 'waiting event')} moved "
            f"(epoch {done.epoch})"
        )

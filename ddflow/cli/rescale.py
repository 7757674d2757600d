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
        int, typer.Option("--partitions", metavar="N", show_default=False, help="The new number of partitions.")
    ],
    memory: Rewriting = None,
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Split or join the partitions of a state.

    A state on Spark has as many partitions as its epochs have tasks. A state of `ddflow diff --state` or `flow.open`
    has one partition. For each new partition, the verb collects its rows, history and waiting events from the old
    files, and writes new files. The result is published as another version of the same epoch. A writer is fenced. If a
    writer commits first, the writer wins, and nothing changes here.

    If a plan has Python functions, rescale it from Python: `ddflow.partitions.rescale.rescale(state, 64, flow=flow)`.

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
        say(f"{state} already has {format_count(done.partitions, 'partition')} (epoch {done.epoch})")
    else:
        say(
            f"{state} has {format_count(done.partitions, 'partition')}, before {done.before:,}: "
            f"{format_count(done.versions, 'row')} and {format_count(done.pending, 'waiting event')} moved "
            f"(epoch {done.epoch})"
        )

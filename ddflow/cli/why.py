"""``ddflow why``: one key's story.

Invariant: what is told of the state is read from it, what is told of events is resolved again from the log. The work
is in `ddflow.engine.why`.

>>> why.__name__
'why'
"""

import json
from contextlib import closing, nullcontext
from typing import Annotated

import typer

from ddflow.cli.arguments import Delimiter, Encoding, Format, Full, Input, Null, Scope, State, Trust
from ddflow.cli.say import say


def why(
    state: State,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="7, or id=7, or id=7,region=EU.")],
    log: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG", show_default=False, help="Files, or folders of them: the events to resolve again."
        ),
    ] = None,
    full: Full = None,
    scope: Scope = None,
    input: Input = None,
    format: Format = None,
    delimiter: Delimiter = None,
    null: Null = None,
    encoding: Encoding = "utf-8",
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="The story as one JSON object.")] = False,
) -> None:
    """Tell a key's story: what it holds, what it held, and why not something else.

    From the state: the row, every version that is still kept with the order that won it, and events that wait for their
    time. From the log, if you give it: every event of the key with its verdict, so that you see losers and what they
    lost against, and every full file that does not name the key. The log is resolved again, each file as one epoch, so
    the times of events are of that replay; in hold-back mode they are the events' own.

    Examples:

    * `ddflow why state/orders 7`

    * `ddflow why state/orders id=7,region=EU orders/ --json`
    """
    from ddflow.cli.log import input_of, key_of, log_of, streamed
    from ddflow.cli.reading import how
    from ddflow.engine.snapshot import Snapshot

    bound = input_of(state, input, trust)
    with (
        closing(log_of(log, bound, how(format, delimiter, null, encoding))) if log else nullcontext() as given,
        Snapshot.open(state, trust=trust) as snapshot,  # type: ignore[arg-type]
    ):
        story = snapshot.why(bound.name, key_of(key, bound), None if given is None else streamed(given, full, scope))
    say(json.dumps(story.to_dict(), default=str) if as_json else str(story))

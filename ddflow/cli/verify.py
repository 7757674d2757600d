"""Compare a state with the stateless fold of its log: the verb ``ddflow verify``.

`ddflow/tools/verify.py` does the work.

Guarantees: the exit code is 0 if they agree, and 1 otherwise. The first keys that differ are then named.

>>> verify.__name__
'verify'
"""

import json
from contextlib import closing
from typing import Annotated

import typer

from ddflow.cli import REFUSED
from ddflow.cli.arguments import OF_TEXT, Full, Input, Scope, State, Trust, VerbOptions, with_options
from ddflow.cli.say import say, show_amount_progress


@with_options(only=OF_TEXT)
def verify(
    state: State,
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            show_default=False,
            help="All files, or folders of them, that were given to the state, in their order.",
        ),
    ],
    ask: VerbOptions,
    full: Full = None,
    scope: Scope = None,
    input: Input = None,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="What the fold may take; it goes to temporary files beyond.")
    ] = "1GB",
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Compare a state with what its log says, key by key.

    The log is folded from its events alone, without the state, and both sides are compared range by range. Rows that
    are missing in the state, that are there and should not be, or that differ are counted; the first ten are shown
    with both rows. Counts are computed again from the rows and compared too. Nothing is written to the state.

    The log is folded as the state was fed; the state records that. If `ddflow replace` fed it full files, the log has
    one file for each. If its events were cut into files otherwise, `--full` names the full ones. A log may begin with a
    full file.

    A state may know what a log cannot tell: which events came late, or which a refused step left out. Notes say
    where that may be.

    Examples:

    * `ddflow verify state/orders monday.csv tuesday.csv`

    * `ddflow verify state/shop orders/ --input orders --json`

    * `ddflow verify state/places full.csv monday.csv tuesday.csv --full full.csv`
    """
    from ddflow.cli.input_files import build_file_options
    from ddflow.cli.log import find_input, open_log, stream_log
    from ddflow.tools.verify import verify as compared

    bound = find_input(state, input, trust)
    options = build_file_options(ask)
    with (
        closing(open_log(log, bound, options)) as given,
        show_amount_progress(f"folding {bound.name}", given.rows, lambda n: f"{n:,} events") as tick,
    ):
        found = compared(state, {bound.name: stream_log(given, full, scope)}, memory=memory, trust=trust, look=tick)  # type: ignore[arg-type]
    say(json.dumps(found.to_dict(), default=str) if as_json else str(found))
    if not found.ok:
        raise typer.Exit(REFUSED)

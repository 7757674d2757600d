"""Compare a state with the final rows that its log gives without a state: the verb ``ddflow verify``.

`ddflow/tools/verify.py` does the work.

Guarantees: the exit code is 0 if the state and the log agree, and 1 otherwise. The report names the first keys that
differ.

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
            help="All files that the state was fed, in order, or folders of files.",
        ),
    ],
    ask: VerbOptions,
    full: Full = None,
    scope: Scope = None,
    input: Input = None,
    memory: Annotated[
        str,
        typer.Option(
            "--memory", metavar="SIZE", help="The memory budget of the fold; more data goes to temporary files."
        ),
    ] = "1GB",
    trust: Trust = "owner",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Compare a state with its log, key by key.

    The verb computes the final rows of the log without the state, and compares these rows with the state, range by
    range. The report counts the rows that the state lacks, the rows that only the state has, and the rows that differ.
    The first ten differences are shown, each with the row of the state and the row of the log. The counts of the state
    are also computed again from the rows, and compared. Nothing is written to the state.

    The state records how it was fed, and the log is read in the same way. If the state was fed full files by
    `ddflow replace`, the log must have one file for each of them. If the events are now in other files than before,
    name the full files with `--full`. A log may begin with a full file.

    A log does not show which events came late, or which events a refused step did not ingest. Notes in the report name
    such limits.

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

"""Explain a class of errors and its remedy: the verb ``ddflow errors``.

The verb prints the docstring of the class in `ddflow/errors/__init__.py`. The documentation site shows the same text.

>>> errors("SinkAhead")
SinkAhead: A target has an epoch that is not in this state's history, or a second process writes to it.
<BLANKLINE>
The cause may be a rollback, or a state that was restored from an older backup.
<BLANKLINE>
Remedy: stop the other writer; then run `ddflow sync`, which writes the difference to the target.
"""

import json
from typing import Annotated

import typer

from ddflow.cli.say import say


def errors(
    name: Annotated[
        str | None, typer.Argument(help="An error class, such as NullKey. Without it, all classes are listed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Explain what an error means, and what to do.

    Python prints the class of an error before its message, as in `ddflow.errors.NullKey: ...`.

    Examples:

    * `ddflow errors NullKey`

    * `ddflow errors`
    """
    from difflib import get_close_matches

    from ddflow.errors import GROUPS, SpecError, parse_error_entry

    groups = {title: [parse_error_entry(each) for each in of] for title, of in GROUPS.items()}
    every = {each.name: each for entries in groups.values() for each in entries}
    name = None if name is None else name.removeprefix("ddflow.errors.")
    if name is not None and name not in every:
        near = "".join(f"did you mean {each}? " for each in get_close_matches(name, every, 1))
        raise SpecError(f"errors {name}", "there is no such class", f"{near}run ddflow errors to list all classes")
    if as_json:
        shown = [each._asdict() for each in every.values() if name in (None, each.name)]
        say(json.dumps(shown if name is None else shown[0]))
    elif name is not None:
        each = every[name]
        say(f"{each.name}: {each.means}\n\n{each.more}\n\nRemedy: {each.fix}".replace("``", "`"))
    else:
        for title, entries in groups.items():
            say(title)
            for each in entries:
                say(f"  {each.name:<21} {each.means}".replace("``", "`"))
            say()

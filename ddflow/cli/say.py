"""What a verb says: the one place where text of ours goes to stdout and stderr.

>>> say("a\\x1b[2Jb")
a\\x1b[2Jb
"""

import typer

from ddflow.errors import mask_secrets
from ddflow.terminal import lines


def say(text: str = "", err: bool = False, drawn: bool = False) -> None:
    """Print lines; on stderr without secrets.

    ``drawn``: by `ddflow.terminal.console`, which made their control sequences.
    """
    text = mask_secrets(text) if err else text
    typer.echo(text if drawn else lines(text), err=err)

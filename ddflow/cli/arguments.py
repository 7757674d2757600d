"""The arguments and options that the verbs about a state share, each described once.  Nothing heavy is imported here.

>>> Trust.__metadata__[0].metavar
'owner|group'
"""

from typing import Annotated

import typer

State = Annotated[
    str, typer.Argument(metavar="STATE", show_default=False, help="The folder of a state, or s3://bucket/prefix.")
]
Input = Annotated[
    str | None,
    typer.Option("--input", metavar="NAME", show_default=False, help="Which input, where the state has several."),
]
Full = Annotated[
    list[str] | None,
    typer.Option(
        "--full",
        metavar="FILE",
        show_default=False,
        help="A file of the log that is full contents, as `ddflow replace` takes it: a name, a folder, or a "
        "pattern such as 'full-*.csv'. May be repeated.",
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(
        "--scope",
        metavar="EXPR",
        show_default=False,
        help="The scope of the files that --full names. Without: what the state says of each.",
    ),
]
Trust = Annotated[
    str,
    typer.Option(
        "--trust", metavar="owner|group", help="group accepts a folder of another user, or that others can write to."
    ),
]

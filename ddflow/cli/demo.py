"""``ddflow demo``: real upsert histories become differences, in process and on Spark, and each one is checked.

Invariant: the exit code is 0 if every check held, 1 if one did not; an input that cannot be read or a missing program
is an error like any other verb's. A demo that shows a wrong row in passing and ends well has shown nothing. All the
work is in `ddflow.demo`; here are the words of the command line.

>>> demo.__name__
'demo'
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    repo: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="A git checkout whose history to run. Default: the one around the working directory."
        ),
    ] = None,
    dpkg: Annotated[
        bool, typer.Option("--dpkg", help="Run this machine's dpkg log instead; with --repo, both.", show_default=False)
    ] = False,
    spark: Annotated[bool, typer.Option(help="Run the plan on local Spark too, and compare.")] = True,
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions on Spark.")] = 4,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the diffs and the picture; git/ and dpkg/ in it.")
    ] = Path("out"),
) -> None:
    """Run a git history through a plan and check every difference against git, and against Spark.

    Files are upserts (path -> mode and blob, or gone), commits are times. Every retraction is checked against the old
    side of git's own raw log, the final files against git ls-tree, and Spark's rows against the local ones. The diffs
    are written as Parquet, the counts over time drawn as PNG. The exit code is 0 if all checks held, 1 if one did not.
    """
    from ddflow.demo import run

    raise typer.Exit(run(repo, dpkg=dpkg, spark=spark, out=out, partitions=partitions))

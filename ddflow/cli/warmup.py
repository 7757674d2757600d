"""Compile the kernels now, so that the first run does not wait for them: the verb ``ddflow warmup``.

Guarantees: the verb fails if no directory can keep the compiled kernels, because the next run would silently compile
them again.

>>> warmup.__name__
'warmup'
"""

import json
import sys
from time import perf_counter
from typing import Annotated

import typer

from ddflow.cli.say import say
from ddflow.terminal import make_console


def warmup(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Compile all kernels in advance, once on each machine.

    Without this verb, the first small steps are interpreted while a background process compiles kernels.
    `DDFLOW_BACKGROUND=0` turns this process off. The first large step waits about ten seconds. Compiled kernels are
    kept in a private directory: `DDFLOW_CACHE_DIR`, by default the cache directory of the platform. When ddflow or
    numba has changed, the kernels are compiled again.

    Examples:

    * `ddflow warmup`
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from ddflow.connectors.files import UnwritableOutput
    from ddflow.tools.warmup import compile_all_kernels

    began = perf_counter()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    shown = sys.stderr.isatty()
    with Progress(*columns, console=make_console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("loading", total=None)
        warmed = compile_all_kernels(
            lambda done, total, doing: bar.update(task, completed=done, total=total, description=doing)
        )
    if warmed.directory is None:
        raise UnwritableOutput(
            "keep compiled kernels",
            "no directory for them is writable",
            "set DDFLOW_CACHE_DIR to a directory that only you may access",
        )
    seconds = perf_counter() - began
    if as_json:
        found = {"kernels": warmed.kernels, "compiled": warmed.compiled, "seconds": round(seconds, 3)}
        say(json.dumps({**found, "directory": str(warmed.directory)}))
        return
    say(f"{warmed.kernels} kernels ready, {warmed.compiled} compiled in {seconds:.1f} s, in {warmed.directory}")

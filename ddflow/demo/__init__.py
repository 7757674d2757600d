"""The demo: real upsert histories become differences, and other programs confirm them row by row.

Invariant: what judges the engine is never the engine: git's raw log and tree, dpkg's own lines and `dpkg-query`, and
Spark running the same plan. A history checked against itself always agrees. The rooms: `git` and `dpkg` read,
`git_feed` and `dpkg_feed` hold the plans and the witnesses' words, `tally` counts checks, `job` runs, `report` and
`plot` show. Importing this imports none of them; `run` does.

>>> run.__kwdefaults__["spark"]
True
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def run(
    repo: str | Path | None = None,
    *,
    dpkg: bool = False,
    spark: bool = True,
    out: Path = Path("out"),
    partitions: int = 4,
    console: Console | None = None,
) -> int:
    """Run the demo and show it: 0 if every check held, 1 if one did not.  See `ddflow.demo.job.run`."""
    from ddflow.demo import job

    return job.run(repo, dpkg=dpkg, spark=spark, out=out, partitions=partitions, console=console)

"""Count rows of upserts by group, as differences or as final counts: the verb ``ddflow count``.

`ddflow/cli/file_run.py` does the work.

Guarantees: when a group's count changes, its old count leaves and its new count enters at the same time. A group whose
count becomes zero leaves.

>>> count.__name__
'count'
"""

import dataclasses
from typing import Annotated

import typer

from ddflow.cli.arguments import VerbOptions, with_options


@with_options()
def count(
    ask: VerbOptions,
    full: Annotated[
        bool, typer.Option("--full", help="Each file holds all rows: a key that it does not name is deleted.")
    ] = False,
) -> None:
    """Count the live rows of a history of upserts by group, incrementally.

    At each time at which a group's count changes, the old count leaves (`_diff` -1) and the new one enters
    (`_diff` 1). A group without rows has no count. `--net` writes the final counts alone.

    A key counts until a row deletes it. With `--full` each file holds *all* rows of its time, as in `ddflow replace`:
    a key that it does not name is deleted, and `--scope`, `--allow-empty` and `--max-absent` mean what they mean there.

    The two modes are those of `ddflow diff`: each file is one epoch, or with `--time` events wait for their time.

    `--state` continues a state, as in `ddflow diff`.

    Examples:

    * `ddflow count orders.parquet --key id --order-by updated_at --tombstone op=D --by city --net`

    * `ddflow count orders/ --key id --time day --filter "amount > 100" --by city,status -o counts.csv`

    * `ddflow count 'beds/*.csv' --full --key bed_id --by ward --net`
    """
    from ddflow.cli.file_run import run_files

    run_files(dataclasses.replace(ask, counts=True, whole=full))

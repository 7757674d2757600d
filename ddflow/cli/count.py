"""Count rows of upserts by group, as differences or as final counts: the verb ``ddflow count``.

`ddflow/cli/file_run.py` does the work.

Guarantees: when a group's count changes, one step retracts its old count and asserts its new count. A group whose count
becomes zero has no row.

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
        bool, typer.Option("--full", help="Each file holds all rows: a key that the file lacks is deleted.")
    ] = False,
) -> None:
    """Count the live rows of a history of upserts by group, incrementally.

    Whenever a group's count changes, the old count leaves (`_diff` -1) and the new count enters (`_diff` 1). A group
    without rows has no count. `--net` writes only the final counts.

    A key counts until a row deletes it. With `--full` each file holds *all* rows of its time: a key that the file
    lacks is deleted. `--scope`, `--allow-empty` and `--max-absent` then work like in `ddflow replace`.

    The two modes are those of `ddflow diff`: each file is one epoch, or with `--time` events wait for their time.

    `--state` continues a state, like in `ddflow diff`.

    Examples:

    * `ddflow count orders.parquet --key id --order-by updated_at --tombstone op=D --by city --net`

    * `ddflow count orders/ --key id --time day --filter "amount > 100" --by city,status -o counts.csv`

    * `ddflow count 'beds/*.csv' --full --key bed_id --by ward --net`
    """
    from ddflow.cli.file_run import run_files

    run_files(dataclasses.replace(ask, counts=True, whole=full))

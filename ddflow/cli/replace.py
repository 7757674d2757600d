"""Turn full files into differences: the verb ``ddflow replace``.

`ddflow/cli/file_run.py` does the work.

Guarantees: after each file the collection holds exactly the rows of that file, within the scope. The output holds the
updates from each file to the next, in ascending order of time.

>>> replace.__name__
'replace'
"""

import dataclasses

from ddflow.cli.arguments import OF_COUNTS, OF_EVENTS, OF_MESSAGES, VerbOptions, with_options


@with_options(without=OF_COUNTS | OF_EVENTS | OF_MESSAGES)
def replace(ask: VerbOptions) -> None:
    """Turn successive full files into differences.

    Every file holds *all* rows of its time. A key that the file lacks is deleted. `_time` is 1 for the first file,
    then 2, 3, ... A key that occurs twice in a file is an error.

    A file without rows is refused, because it would delete everything; `--allow-empty` accepts it. `--max-absent 50%`
    stops at a file that lacks more than half of the keys.

    With `--scope`, the files hold all rows of that scope, and rows outside the scope stay unchanged.

    With `--state` the first file is compared with the contents of the state, so you can pass one file each day. With
    `--at` you pass the day of the file, which becomes `_time`.

    Examples:

    * `ddflow replace day1.csv day2.csv day3.csv --key id -o changes.parquet`

    * `ddflow replace eu.csv --key id --scope "region = 'EU'" --state state/places -o changes.parquet`

    * `ddflow replace monday.csv --key id --state state/by_day --at 2026-11-23 -o monday.parquet`

    * `ddflow replace packages/ --key name --noop-ignore checked_at -o changes.jsonl`
    """
    from ddflow.cli.file_run import run_files

    run_files(dataclasses.replace(ask, whole=True))

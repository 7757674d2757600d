"""Turn full files into differences: the verb ``ddflow replace``.

`ddflow/cli/file_run.py` does the work.

Guarantees: after each file the collection holds exactly the rows of the file, within the scope. The output holds the
updates from one file to the next, in ascending order of time.

>>> replace.__name__
'replace'
"""

import dataclasses

from ddflow.cli.arguments import OF_COUNTS, OF_EVENTS, OF_MESSAGES, VerbOptions, with_options


@with_options(without=OF_COUNTS | OF_EVENTS | OF_MESSAGES)
def replace(ask: VerbOptions) -> None:
    """Turn successive full files into differences.

    Every file holds *all* rows of its time. A key that it does not name is deleted. `_time` is 1 for the first file,
    then 2, 3, ... A key that is in a file twice is an error.

    A file without rows is refused, because it would delete everything (`--allow-empty`). `--max-absent 50%` stops at
    one that lacks more.

    With `--scope` the files hold all rows of that scope; all other rows stay as they are.

    With `--state` the first file is compared with what the state holds: give it one file a day, and with `--at` its
    day, which then is `_time`.

    Examples:

    * `ddflow replace day1.csv day2.csv day3.csv --key id -o changes.parquet`

    * `ddflow replace eu.csv --key id --scope "region = 'EU'" --state state/places -o changes.parquet`

    * `ddflow replace monday.csv --key id --state state/by_day --at 2026-11-23 -o monday.parquet`

    * `ddflow replace packages/ --key name --noop-ignore checked_at -o changes.jsonl`
    """
    from ddflow.cli.file_run import run_files

    run_files(dataclasses.replace(ask, whole=True))

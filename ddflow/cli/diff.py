"""Turn upserts into differences: the verb ``ddflow diff``.

`ddflow/cli/file_run.py` does the work.

Guarantees: the options describe a collection, and the output holds the updates of this collection, in ascending order
of time. The sum of these updates is the collection.

>>> diff.__name__
'diff'
"""

from ddflow.cli.arguments import OF_COUNTS, OF_FULL_FILES, VerbOptions, with_options


@with_options(without=OF_COUNTS | OF_FULL_FILES)
def diff(ask: VerbOptions) -> None:
    """Turn a history of upserts into differences: each change with its retraction.

    Every row of the input says that a key now has these values, or that the key is deleted. Every row of the output
    says that a row enters (`_diff` 1) or leaves (`_diff` -1) the collection at `_time`.

    **Epoch mode**, the default: each file is one epoch, in the order given, and `_time` is 1, 2, 3, ... An event below
    the order of its key (`--order-by`) is stale, however late it arrives.

    A key stays until a row deletes it. If each file holds all rows, use `ddflow replace`.

    **Hold-back mode**, with `--time`: `_time` is the time of the event. An event waits until its time is closed. That
    is at the end of the input, or with `--lateness N` when ddflow has seen a time that is greater by N.

    Files may have different columns. A message names the new and the missing columns. A bad file stops the run before
    any of its rows is written. With `--skip-bad-files` the run skips the file.

    With `--state` the run continues a state, and the next run continues from there. Pass only the new files. Each file
    is one epoch, committed as a whole. With `--at 2026-11-26` a run takes one file, and `_time` is that day.

    Examples:

    * `ddflow diff orders.parquet --key id --order-by updated_at --tombstone op=D -o diffs.parquet`

    * `ddflow diff monday.csv tuesday.csv --key id --filter "status = 'paid'" --project city,amount`

    * `ddflow diff visits.jsonl --key user --order-by at --merge visits=sum --merge tags=union`

    * `ddflow diff readings/ --key sensor,metric --time at --lateness 10min --late drop -o diffs.arrow`

    * `ddflow diff 'days/*.csv.gz' s3://bucket/late/ --key id --delimiter ';' --null NA -o diffs.parquet`

    * `zcat feed.gz | ddflow diff - --format jsonl --key id -o -`

    * `ddflow diff wednesday.csv --state state/orders --key id --order-by updated_at -o wednesday.parquet`
    """
    from ddflow.cli.file_run import run_files

    run_files(ask)

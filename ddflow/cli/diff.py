"""Turn upserts into differences: the verb ``ddflow diff``.

`ddflow/cli/file_run.py` does the work.

Guarantees: the output holds the updates of the collection that the options describe, in ascending order of time. Their
sum is the collection.

>>> diff.__name__
'diff'
"""

from ddflow.cli.arguments import OF_COUNTS, OF_FULL_FILES, VerbOptions, with_options


@with_options(without=OF_COUNTS | OF_FULL_FILES)
def diff(ask: VerbOptions) -> None:
    """Turn a history of upserts into differences: each change with its own retraction.

    Every row of the input says "this key now has these values", or that it is gone. Every row of the output says
    that a row enters (`_diff` 1) or leaves (`_diff` -1) the collection at `_time`.

    **Epoch mode**, the default: each file is one epoch, in the order given, and `_time` is 1, 2, 3, ... An event below
    the order of its key (`--order-by`) is stale, however late it arrives.

    A key stays until a row deletes it. Where each file holds all rows, use `ddflow replace`.

    **Hold-back mode**, with `--time`: `_time` is the event's own. Events wait until their time is closed: at the end
    of input, or with `--lateness` once times that much greater have been seen.

    Columns may come and go from file to file: a line says which. A bad file stops the run before anything of it is
    written, or is left out with `--skip-bad-files`.

    With `--state` the run continues a state and leaves it to the next run. Give it the new files only. Each is an
    epoch, committed whole. With `--at 2026-11-26` a run takes one file, and `_time` is that day.

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

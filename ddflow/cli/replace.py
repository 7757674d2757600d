"""``ddflow replace``: full files in, differences out.

Invariant: after each file the collection holds what the file says (within the scope), and nothing else; the output
holds the updates that lead from one to the next, times ascending.  The work is in ``run``.

>>> replace.__name__
'replace'
"""

from __future__ import annotations

from ddflow.cli import options as o


def replace(
    inputs: o.Inputs,
    key: o.Key,
    scope: o.Scope = None,
    tombstone: o.Tombstone = None,
    delete: o.Delete = None,
    null_key: o.NullKey = "error",
    noop_ignore: o.NoopIgnore = None,
    track: o.Track = None,
    filter_: o.Filter = None,
    project: o.Project = None,
    types: o.Types = None,
    output: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
    state: o.State = None,
    epoch: o.Epoch = None,
    memory: o.Memory = None,
    trust: o.Trust = "owner",
) -> None:
    """Turn successive full files into differences: what came, what changed, what is gone.

    Every file holds *all* rows there are at its time: a key that it does not name is deleted. `_time` is 1 for the
    first file, then 2, 3, ... A key that a file names twice is an error.

    With `--scope` the files hold all rows of that scope, and the others stay as they are.

    With `--state` the first file is compared with what the state holds: give it one file a day.

    Examples:

    * `ddflow replace day1.csv day2.csv day3.csv --key id -o changes.parquet`

    * `ddflow replace eu.csv --key id --scope "region = 'EU'" --state state/orders -o changes.parquet`

    * `ddflow replace packages/ --key name --noop-ignore checked_at -o changes.jsonl`
    """
    ask = o.Ask(**locals(), whole=True)  # every option is a field of it

    from ddflow.cli.run import run

    run(ask)

"""``ddflow diff``: upserts in, differences out.

Invariant: the output holds the updates of the collection that the options describe, times ascending; accumulated they
are the collection.  The work is in ``run``.

>>> diff.__name__
'diff'
"""

from __future__ import annotations

from ddflow.cli import options as o


def diff(
    inputs: o.Inputs,
    key: o.Key,
    order_by: o.OrderBy = None,
    tie: o.Tie = "last",
    seq: o.Seq = None,
    stale: o.Stale = "drop",
    time: o.Time = None,
    lateness: o.Lateness = None,
    late: o.Late = "error",
    tombstone: o.Tombstone = None,
    delete: o.Delete = None,
    null_key: o.NullKey = "error",
    noop_ignore: o.NoopIgnore = None,
    track: o.Track = None,
    merge: o.Merge = None,
    group: o.Group = None,
    versions: o.Versions = "row",
    derive: o.Derive = None,
    filter_: o.Filter = None,
    project: o.Project = None,
    types: o.Types = None,
    output: o.Out = None,
    stale_output: o.StaleOutput = None,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
    state: o.State = None,
    epoch: o.Epoch = None,
    memory: o.Memory = None,
    trust: o.Trust = "owner",
) -> None:
    """Turn a history of upserts into differences: each change with its own retraction.

    Every row of the input says "this key now has these values", or that it is gone. Every row of the output says
    that a row enters (`_diff` 1) or leaves (`_diff` -1) the collection at `_time`.

    **Epoch mode**, the default: each file is one epoch, in the order given, and `_time` is 1, 2, 3, ... An event
    whose `--order-by` is below what its key holds already is stale, however late it arrives.

    **Hold-back mode**, with `--time`: `_time` is the event's own. Events wait until their time is closed: at the end
    of input, or with `--lateness` once times that much greater have been seen.

    With `--state` the run goes on from a state, and leaves it to the next: give it the files that are new. Each is an
    epoch, and is committed with its rows.

    Examples:

    * `ddflow diff orders.parquet --key id --order-by updated_at --tombstone op=D -o diffs.parquet`

    * `ddflow diff monday.csv tuesday.csv --key id --filter "status = 'paid'" --project city,amount`

    * `ddflow diff visits.csv --key user --order-by at --merge visits=sum --merge tags=union`

    * `ddflow diff readings/ --key sensor,metric --time at --lateness 10min --late drop -o diffs.arrow`

    * `ddflow diff wednesday.csv --state state/orders --key id -o wednesday.parquet`
    """
    ask = o.Ask(**locals())  # every option is a field of it

    from ddflow.cli.run import run

    run(ask)

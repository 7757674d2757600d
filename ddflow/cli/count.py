"""``ddflow count``: upserts in, counts by group out, as differences or, at the end, net.

Invariant: at each time a group's old count leaves and its new one enters; a group at zero leaves.  The work is in
``run``.

>>> count.__name__
'count'
"""

from __future__ import annotations

from ddflow.cli import options as o


def count(
    inputs: o.Inputs,
    key: o.Key,
    by: o.By = None,
    name: o.Name = "count",
    net: o.Net = False,
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
    """Count the live rows of a history of upserts by group, incrementally.

    At each time at which a group's count changes, the old count leaves (`_diff` -1) and the new one enters
    (`_diff` 1). A group without rows has no count. `--net` writes the final counts alone.

    The two modes are those of `ddflow diff`: each file is one epoch, or with `--time` events wait for their time.

    `--state` goes on from a state, as in `ddflow diff`.

    Examples:

    * `ddflow count orders.parquet --key id --order-by updated_at --tombstone op=D --by city --net`

    * `ddflow count orders/ --key id --time day --filter "amount > 100" --by city,status -o counts.csv`
    """
    ask = o.Ask(**locals(), counts=True)  # every option is a field of it

    from ddflow.cli.run import run

    run(ask)

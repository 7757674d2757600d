"""``ddflow count``: upserts in, counts by group out, as differences or, at the end, net.

Invariant: at each time a group's old count leaves and its new one enters; a group at zero leaves.  The work is in
``run``.

>>> count.__name__
'count'
"""

import dataclasses

from ddflow.cli.options import OF_FULL_FILES, Ask, asks


@asks(without=OF_FULL_FILES)
def count(ask: Ask) -> None:
    """Count the live rows of a history of upserts by group, incrementally.

    At each time at which a group's count changes, the old count leaves (`_diff` -1) and the new one enters
    (`_diff` 1). A group without rows has no count. `--net` writes the final counts alone.

    The two modes are those of `ddflow diff`: each file is one epoch, or with `--time` events wait for their time.

    `--state` continues a state, as in `ddflow diff`.

    Examples:

    * `ddflow count orders.parquet --key id --order-by updated_at --tombstone op=D --by city --net`

    * `ddflow count orders/ --key id --time day --filter "amount > 100" --by city,status -o counts.csv`
    """
    from ddflow.cli.once import run

    run(dataclasses.replace(ask, counts=True))

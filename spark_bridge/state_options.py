"""How a state is opened by the driver of Spark's jobs: its address, and the options of who opens it.

Invariant: what tasks in other processes cannot open is refused before anything is made. It opens nothing.

>>> check_address("/mnt/shared/orders")
'/mnt/shared/orders'
>>> StateOptions("state", None, None, None, "owner", None).keep
100
"""

import os
from typing import Any, Final, Literal, NamedTuple

from ddflow.connectors.parquet.sink import check_target
from ddflow.errors import Option, Phrase, SpecError
from ddflow.metrics import Metrics
from ddflow.storage.opening import located

KEEP: Final = 100
"""How many epochs can be replayed, and followed by others, by default."""


class StateOptions(NamedTuple):
    """How a state is opened and its tasks run.

    ``partitions``: None for the state's own. ``outputs``: a folder of Parquet files, or None. ``memory``: a size, of a
    task. ``trust``: as in `Flow.open`. ``part_cache``: what a worker keeps open, a size or "auto". ``adopt``: whether
    another query may go on feeding the state. ``name``: what Spark's pages and the log call it, by default its inputs.
    ``keep``: how many epochs can be replayed, and followed. ``checkpoint``: of the query, for messages. ``metrics``: as
    in `Flow.open`.
    """

    state: str
    partitions: int | None
    outputs: str | None
    memory: str | int | None
    trust: Literal["owner", "group"]
    part_cache: str | int | None
    adopt: bool = False
    name: str | None = None
    keep: int = KEEP
    checkpoint: str | None = None
    metrics: Metrics | None = None


def check_address(state: Any, outputs: Any = None) -> str:
    """Check and return the address of a state that tasks can open too, and check the target of its outputs.

    Raises `SpecError`, `StateRefused` for a scheme that is not supported.
    """
    check_target(outputs)
    if not isinstance(state, str | os.PathLike):
        raise SpecError(
            Phrase(Option("state"), f" a {type(state).__name__}"),
            "tasks in other processes cannot open that",
            "give a folder that all of them see, or s3://bucket/prefix",
        )
    return os.fspath(located(state))

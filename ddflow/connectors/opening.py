"""A sink by its target: the one place that knows which sinks there are.

Invariant: what a manifest names as the target of its outputs opens the sink that wrote there, and `check_target` lets
pass what `open_sink` opens.
"""

import os
from typing import Any

from ddflow.connectors.parquet.sink import ParquetSink
from ddflow.connectors.protocol import Sink
from ddflow.storage import address
from ddflow.storage.disk import Disk
from ddflow.storage.protocol import Store


def check_target(given: Any) -> None:
    """Raise `StateRefused` for an invalid target, before anything is opened.  O(length)."""
    address.folder(given, "write outputs to")


def open_sink(target: str | os.PathLike[str], store: Store | None = None, trust: str = "owner") -> Sink:
    """Return the sink of a target; it reads and creates nothing yet.

    ``store``: the state's, which gives this writer's nonce; without one nothing can be put.  ``trust``: as a state's.
    Raises `StateRefused` for an invalid target.
    """
    nonce = "0" * 16 if store is None else store.nonce
    # The disk of a state's own folder, or this machine's.
    return ParquetSink(target, nonce, trust, getattr(store, "disk", Disk()))

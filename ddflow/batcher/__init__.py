"""The batcher: events of one hold-back source that wait, by time, until the frontier passes them.

sealed     events in the order of their times, and how several lots of them become one
run        a lot that waits: resident, or spilled to a file
runs       those of one batcher, by their least time: few, whatever the pushes were
batcher    push by push in; out in the order of time
inventory  all of it as plain values and files, and back
"""

from ddflow.batcher.batcher import Batcher
from ddflow.batcher.inventory import restore, take
from ddflow.batcher.sealed import Sealed, joined

__all__ = ["Batcher", "Sealed", "joined", "restore", "take"]

"""The batcher: events of one hold-back input that wait, by time, until the frontier passes them.

run        a chunk that waits: resident, or spilled to a file
runs       those of one batcher, by their least time: few, whatever the pushes were
batcher    push by push in; out in the order of time
checkpoint all of it as plain values and files, and back
"""

from ddflow.dataflow.batcher.batcher import Batcher
from ddflow.dataflow.batcher.checkpoint import PendingRecord, restore, take

__all__ = ["Batcher", "PendingRecord", "restore", "take"]

"""What a run did: ``RunDone``, which `Engine.run` gives back and ``ddflow run --json`` prints.

Invariant: it counts what was committed. What a run took in and did not commit, because it failed, is in no figure.

>>> done = RunDone(epochs=2, rows=30, stopped="signal")
>>> done.epochs, done.rows, done.moved, done.stopped, done.sinks
(2, 30, 0, 'signal', {})
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class RunDone:
    """The counts of a run.

    Attributes
    ----------
    epochs, rows, updates : int
        The committed epochs, the rows taken in, and the updates put out. Full contents read together are one epoch, and
        each has another time.
    moved : int
        How often positions were committed without an epoch, because no rows of an input came before them.
    stopped : {"end", "signal", "stop", "time"}
        The reason for its end.
    seconds : float
        How long it took.
    sinks : dict of str to int
        By output, the last epoch that its sink has.
    behind : dict of str to float
        By source, its lag at the end in seconds, from `metrics.SourceLag`; None if unknown.
    """

    epochs: int = 0
    rows: int = 0
    updates: int = 0
    moved: int = 0
    stopped: Literal["end", "signal", "stop", "time"] = "end"
    seconds: float = 0.0
    sinks: dict[str, int] = field(default_factory=dict)
    behind: dict[str, float | None] = field(default_factory=dict)

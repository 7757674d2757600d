"""A change: what one step does to a range of identities of an arrangement.

Invariant: it is computed before anything changes, and holds all that taking it in needs; an index that was rebuilt
meanwhile has another number, and keys are then looked for again.

>>> import numpy as np, pyarrow as pa
>>> zero = np.array([0])
>>> batch = Batch.of([5], [3], [True], pa.table({"k": [1]}))
>>> Change(batch, np.array([5], np.uint64), zero, zero, 0, live_added=1, tombstones_added=0).nbytes > 0
True
"""

from typing import NamedTuple

from ddflow.columns.hashing import Ints, Words
from ddflow.trace.batch import Batch


class Change(NamedTuple):
    """What one step does to a range of identities: its versions, and which of them are current after it."""

    batch: Batch
    """The versions, in memory or in files."""
    value: Words
    """uint64[n]: what counts in "did it change", for the index."""
    last: Ints
    """int64[keys]: the place of each key's last version, ascending; -1 for a key that did not change."""
    place: Ints
    """int64[keys]: where `Arrangement.seek` found the keys in the index."""
    built: int
    """The number of the index's table at that time."""
    live_added: int
    """How many more keys are live than before."""
    tombstones_added: int
    """How many more hold an order and no row."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that taking it in will add; none of a batch in files."""
        return self.batch.nbytes if self.batch.mapped is None else 0

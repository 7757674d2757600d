"""Chunks: the events of several runs, cut by time into pieces of one size.

Invariant: the chunks hold every event of the runs once and in order, and none is much larger than asked, whatever the
times are. Runs overlap in time, and joining them all to cut the whole would take their memory once more. So all are cut
at the same times, one chunk's worth between two cuts, and joined chunk by chunk. Where one time alone has more events
than a chunk, no cut by time helps: they are given run by run. It does not keep or write anything.

>>> import pyarrow as pa
>>> from ddflow.operators.upsert.events import Events
>>> def run(*times):
...     t = np.array(times)
...     return PendingRun.resident(Events(pa.record_batch({"n": t}), t, t, t))
>>> [chunk.times.tolist() for chunk in chunks([run(1, 4, 7, 8), run(2, 3, 5, 6)], 3)]
[[1, 2], [3, 4, 5], [6, 7, 8]]
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ddflow.dataflow.batcher.run import PendingRun
from ddflow.operators.upsert.events import Events, joined


def rows_of(runs: Sequence[PendingRun], size: int) -> int:
    """How many events of these take ``size`` bytes, one at least.  O(runs)."""
    taken = sum(run.bytes_resident if run.file is None else run.file.nbytes for run in runs)
    return max(size * sum(run.events.times.size for run in runs) // max(taken, 1), 1)


def chunks(runs: Sequence[PendingRun], rows: int) -> Iterator[Events]:
    """Split the events of ``runs`` into chunks of about ``rows``, 3 x ``rows`` at most. A chunk of one run is a slice.

    Chunks follow each other in time, except several chunks of one time. Takes memory for one chunk, twice, and for two
    times a run and chunk. O(n log n).
    """
    begins = [run.begin for run in runs]
    for cut in [*_cuts(runs, rows), None]:
        ends = [run.events.times.size if cut is None else max(run.place(cut), run.begin) for run in runs]
        parts = [run.events.cut(b, e) for run, b, e in zip(runs, begins, ends, strict=True) if b < e]
        if sum(part.times.size for part in parts) <= 3 * rows:
            if parts:
                yield joined(parts)
        else:
            for part in parts:
                for at in range(0, part.times.size, rows):
                    yield part.cut(at, min(at + rows, part.times.size))
        begins = ends


def _cuts(runs: Sequence[PendingRun], rows: int) -> list[int]:
    """Ascending times with about ``rows`` events between each two, unless they have one time."""
    # Every time taken stands for `step` events; the last few of a run are not counted, at most half of `rows` in all.
    step = max(rows // (2 * len(runs)), 1)
    times = np.sort(np.concatenate([run.events.times[run.begin + step - 1 :: step] for run in runs]))
    every = max(rows // step, 1)
    return [int(time) for time in np.unique(times[every - 1 :: every])]

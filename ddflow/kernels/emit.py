"""Write the updates that the events of a step cause, in the order of the events' rows.

`resolve_keys` works key by key and writes an outcome for each row (``resolve.OUTCOME``). The kernels of this file read
the rows once, from front to back. Threads write separate spans of rows; `count_updates` computes in advance how many
updates each span has.

Guarantees: updates are in the order of the rows that caused them, and each retraction precedes its assertion. Rows are
sorted by time, so the updates are sorted by time without another sort.
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.identity import _unmix_word
from ddflow.kernels.pointer import load_u64
from ddflow.kernels.resolve import APPLIED, OUTCOME, ROW


@kernel
def mark_times_and_deletes(times: Ints, distinct: Ints, gone: Flags, out: Narrow) -> None:
    """Compute the mark of each row. O(n + m).

    The mark is twice the rank of the row's time, plus 1 if the row is a delete.

    Input:
    - times, int64[n]: the ascending times of the rows.
    - distinct, int64[m]: the distinct values of ``times``, ascending.
    - gone, uint8[n]: 1 for each delete. ``gone`` has size 0 if there are no deletes.

    Output:
    - out, int32[n]: the mark of each row.

    >>> out = np.empty(3, np.int32)
    >>> mark_times_and_deletes(np.array([5, 7, 7]), np.array([5, 6, 7]), np.array([0, 1, 0], np.uint8), out)
    >>> out.tolist()
    [0, 5, 4]
    """
    rank = 0
    for i in range(times.size):
        while distinct[rank] != times[i]:
            rank += 1
        out[i] = 2 * rank + (np.int64(gone[i]) if gone.size != 0 else 0)


@kernel
def emit_updates(
    outcome: Ints, mark: Narrow, first: np.int64, about: Ints, diffs: Ints, ranks: Narrow, counts: Ints
) -> int:
    """Write the updates of a span of rows in the order of the rows.

    A row's retraction comes before its assertion. O(n).

    Input:
    - outcome, int64[n]: the outcome of each row, as in `Outcomes`.
    - mark, int32[n]: the mark of each row, as in `SortedEvents`.
    - first: the number of the span's first row.

    Output:
    - about, int64: for each update, the number of an event or a reference to a row in the state.
    - diffs, int64: the diff of each update, 1 or -1.
    - ranks, int32: the rank of each update's time.
    - counts, int64[8]: the kernel adds the number of events with each verdict.

    Returns the number of updates.

    >>> out, counts = [np.empty(1, np.int64) for _ in range(2)], np.zeros(8, np.int64)
    >>> from ddflow.kernels.resolve import RETRACTS
    >>> outcome = np.array([RETRACTS | APPLIED << OUTCOME | 9])
    >>> emit_updates(outcome, np.ones(1, np.int32), np.int64(0), *out, np.empty(1, np.int32), counts)
    1
    >>> [int(column[0]) for column in out], int(counts[APPLIED])
    ([9, -1], 1)

    >>> from ddflow.kernels.resolve import RETRACTS
    >>> one, few = lambda *values: np.array(values, np.int64), lambda *values: np.array(values, np.int32)
    >>> outcome = one(APPLIED << OUTCOME, RETRACTS | APPLIED << OUTCOME)
    >>> about, diffs, ranks, counts = np.empty(3, np.int64), np.empty(3, np.int64), few(0, 0, 0), np.zeros(8, np.int64)
    >>> emit_updates(outcome, few(0, 2), np.int64(0), about, diffs, ranks, counts)
    3
    >>> about.tolist(), diffs.tolist(), ranks.tolist(), int(counts[APPLIED])  # +row 0; -row 0, +row 1
    ([0, 0, 1], [1, -1, 1], [0, 1, 1], 2)
    """
    written = 0
    for row in range(outcome.size):
        verdict = (outcome[row] >> OUTCOME) & 7
        counts[verdict] += 1
        if verdict != APPLIED and outcome[row] >= 0:
            continue
        if outcome[row] < 0:
            about[written], diffs[written], ranks[written] = outcome[row] & ROW, -1, mark[row] >> 1
            written += 1
        if verdict == APPLIED and mark[row] & 1 == 0:
            about[written], diffs[written], ranks[written] = first + row, 1, mark[row] >> 1
            written += 1
    return written


@kernel
def emit_values(
    outcome: Ints, mark: Narrow, values: np.uint64, hashes: Words, k0: np.uint64, k1: np.uint64, out: Words
) -> None:
    """Write each update's value of a 64-bit column, in the order of `emit_updates`. O(n).

    An assertion has the value of its event. The value of a retraction is computed from ``hashes``.

    Input:
    - outcome, int64[n]: the outcome of each row of a span.
    - mark, int32[n]: the mark of each row of the span.
    - values: the address of the column at the span's first row.
    - hashes, uint64[n]: the hashes from `resolve_keys`, which `mix_words` made. ``hashes`` has size 0 if a retraction
      has its event's value, as in a key column.
    - k0, k1: the secret.

    Output:
    - out, uint64[updates]: the value of each update.

    >>> out, column, none, zero = np.empty(2, np.uint64), np.array([7, 8]), np.empty(0, np.uint64), np.uint64(0)
    >>> from ddflow.kernels.resolve import NOOP, RETRACTS
    >>> emit_values(np.array([NOOP << OUTCOME, RETRACTS | APPLIED << OUTCOME]), np.zeros(2, np.int32),
    ...        np.uint64(column.ctypes.data), none, zero, zero, out)
    >>> out.tolist()
    [8, 8]
    """
    written = 0
    for row in range(outcome.size):
        applied = (outcome[row] >> OUTCOME) & 7 == APPLIED
        if applied or outcome[row] < 0:
            value = load_u64(values + np.uint64(row << 3))
            if outcome[row] < 0:
                out[written] = value if hashes.size == 0 else _unmix_word(hashes[row], k0, k1)
                written += 1
            if applied and mark[row] & 1 == 0:
                out[written] = value
                written += 1


@kernel
def map_ranks_to_times(ranks: Narrow, times: Ints, out: Ints) -> None:
    """Write the time of each rank. O(n).

    Input:
    - ranks, int32[n]: the ranks to convert.
    - times, int64: the time of each rank.

    Output:
    - out, int64[n]: the times of ``ranks``.

    >>> out = np.empty(2, np.int64)
    >>> map_ranks_to_times(np.array([1, 0], np.int32), np.array([5, 9]), out)
    >>> out.tolist()
    [9, 5]
    """
    for i in range(ranks.size):
        out[i] = times[ranks[i]]


@kernel
def count_updates(outcome: Ints, mark: Narrow) -> int:
    """Count the updates that `emit_updates` will write for a span of rows. O(n).

    >>> from ddflow.kernels.resolve import NOOP, RETRACTS
    >>> count_updates(np.array([RETRACTS | APPLIED << OUTCOME, NOOP << OUTCOME]), np.zeros(2, np.int32))
    2
    """
    updates = 0
    for row in range(outcome.size):
        applied = (outcome[row] >> OUTCOME) & 7 == APPLIED
        updates += (1 if outcome[row] < 0 else 0) + (1 if applied and mark[row] & 1 == 0 else 0)
    return int(updates)

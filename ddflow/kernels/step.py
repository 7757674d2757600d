"""Run the kernels of one operator in a small step in one call.

A call of a kernel from Python costs as much as the work of the kernel for a hundred rows. So for few rows an operator
calls one kernel of this file. For many rows it calls the kernels of the other files, span by span.

Guarantees: the results are the same as those of the separate kernels. Scratch memory is passed in few arrays, because
each argument costs time.
"""

import numpy as np

from ddflow.kernels.accumulate import update_group_counts
from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.emit import emit_updates, mark_times_and_deletes
from ddflow.kernels.identity import hash_rows
from ddflow.kernels.index import look_up_keys
from ddflow.kernels.resolve import LIVE, Outcomes, Prior, Rules, SortedEvents, resolve_keys
from ddflow.kernels.sort import order_by_rank, sort_rows


@kernel
def resolve_rows(
    directory: Words2d,  # directory, shift, line: the index of the keys, as for index.look_up_keys
    shift: np.uint64,
    line: np.uint64,
    addresses: Words2d,  # the columns of the events, as for identity.hash_rows
    keys: Ints2d,  # the plan of the key, as for identity.hash_rows
    values: Ints2d,  # the plan of the columns that decide whether a row changed
    k0: np.uint64,  # k0, k1: the secret
    k1: np.uint64,
    times: Ints,  # times, distinct, gone: as for emit.mark_times_and_deletes
    distinct: Ints,
    gone: Flags,
    order: Ints2d,  # int64[n, w]: the order words of the events
    rules: Ints,  # int64[7]: the fields of resolve.Rules
    bits: int,  # the number of leading bits for the sort
    narrow: Narrow,  # int32[5 n + 1 + 2**bits]: scratch memory; the ranks of the updates (2 n), ...
    words: Words,  # uint64[6 n]: scratch memory
    long: Ints,  # int64[8 n]: the references of updates (2 n), the rows, events, last versions and places (n each), ...
    held: Ints2d,  # int64[n, stored words]: scratch memory for the order words of the keys
    high: Words,  # high to value: the versions, as in resolve.Outcomes; low and time may have size 0
    low: Words,
    time: Ints,
    live: Flags,
    value: Words,
    diffs: Ints,  # int64[2 n]: the diff of each update
    counts: Ints,  # int64[8]: the kernel adds the number of events with each verdict
) -> tuple[int, int, int, int, int, int]:
    """Hash, sort, look up and resolve events, and write their updates. O(n + 2**bits).

    Returns the numbers of ``resolve.resolve_keys``, then the number of keys.

    >>> column, addresses, none = np.array([9, 4, 9]), np.zeros((1, 5), np.uint64), np.empty((3, 0), np.int64)
    >>> addresses[0, 1], plan = column.ctypes.data, np.array([[0, 0, 8]])
    >>> word, long, narrow = (lambda n, kind=kind: np.zeros(n, kind) for kind in (np.uint64, np.int64, np.int32))
    >>> scratch, diffs, counts = (narrow(18), word(18), long(24)), long(6), long(8)
    >>> from ddflow.kernels.index import describe_shard
    >>> shard = describe_shard(table := np.zeros((4, 3), np.uint64), 2, 0, 0, 2)
    >>> probe = np.array([shard] * 2, np.uint64), np.uint64(63), np.uint64(24)
    >>> resolve_rows(*probe, addresses, plan, plan, np.uint64(1),
    ...     np.uint64(2), long(3), long(1), np.zeros(3, np.uint8), none, long(7), 1, *scratch, none, word(3), word(0),
    ...     long(0), np.zeros(3, np.uint8), word(3), diffs, counts)
    (2, 2, -1, 2, 0, 2)
    >>> scratch[2][:2].tolist(), diffs[:2].tolist(), counts.tolist()  # the second event of key 9 wins
    ([1, 2], [1, 1], [0, 0, 0, 0, 0, 1, 0, 2])
    """
    n = times.size
    about, row, event, last = long[: 2 * n], long[2 * n : 3 * n], long[3 * n : 4 * n], long[4 * n : 5 * n]
    place, reference, outcome = long[5 * n : 6 * n], long[6 * n : 7 * n], long[7 * n :]
    ranks, mark, permutation = narrow[: 2 * n], narrow[2 * n : 3 * n], narrow[3 * n : 4 * n]
    starts, at = narrow[4 * n : 5 * n + 1], narrow[5 * n + 1 :]
    ids, seconds = words[:n], words[n : n + low.size]
    first, second = words[2 * n : 3 * n], words[3 * n : 3 * n + low.size]
    hashes, prior = words[4 * n : 5 * n], words[5 * n :]
    hash_rows(addresses, keys, k0, k1, True, first, second)
    hash_rows(addresses, values, k0, k1, False, hashes, hashes[:0])
    mark_times_and_deletes(times, distinct, gone, mark)
    g = np.int64(sort_rows(first, second, bits, at, permutation, ids, seconds, starts))
    look_up_keys(directory, shift, line, ids, seconds, starts[:g], place[:g], reference[:g], prior[:g], held[:g])
    events = SortedEvents(permutation, starts, ids, seconds, mark, distinct, order, hashes)
    ruled = Rules(rules[0], rules[1], rules[2] != 0, rules[3] != 0, rules[4], rules[5] != 0, rules[6] != 0)
    out = Outcomes(outcome, outcome[:0], high, low, time, live, value, event, row, last[:g])
    stored = Prior(place[:g], reference[:g], prior[:g], held[:g])
    updates, versions, refused, lived, buried = resolve_keys(events, stored, ruled, out)
    if refused < 0:
        emit_updates(outcome, mark, np.int64(0), about, diffs, ranks, counts)
    return updates, versions, refused, lived, buried, int(g)


@kernel
def _write_versions(
    versions: int,
    raw: Ints,
    ranks: Narrow,
    group: Narrow,
    ids: Words,
    seconds: Words,
    starts: Narrow,
    times: Ints,
    last: Ints,
    rows: Ints,
    high: Words,
    low: Words,
    time: Ints,
    live: Flags,
    count: Ints,
) -> None:
    """Write the versions of `accumulate.update_group_counts`, sorted by identity and time.

    - raw, int64[4 n]: a row, the count and the group of each version, then scratch memory. ranks, int32[n]: the rank of
      each version's time. group, int32[n]: scratch memory.
    - ids, seconds, starts: the sorted identities, and the place where each group begins.
    - last, int64[g]: the last version of each group, which the kernel replaces by the place of this version.
    """
    n = group.size
    row, value, of, order = raw[:n], raw[n : 2 * n], raw[2 * n : 3 * n], raw[3 * n :]
    for v in range(versions):
        group[v] = of[v]  # each group has a row at least, so there are no more versions than rows
    order_by_rank(group[:versions], order[:0], np.int64(last.size), order)
    for v in range(versions):
        i = order[v]
        begin = starts[of[i]]
        rows[v], high[v], time[v], count[v] = row[i], ids[begin], times[ranks[i]], value[i]
        live[v] = np.uint8(value[i] != 0)
        if low.size != 0:
            low[v] = seconds[begin]
        last[of[i]] = v


@kernel
def count_rows(
    directory: Words2d,  # directory, shift, line: the index of the groups, as for index.look_up_keys, with the counts
    shift: np.uint64,
    line: np.uint64,
    addresses: Words2d,  # the columns of the groups, as for identity.hash_rows
    keys: Ints2d,  # the plan of these columns
    k0: np.uint64,  # k0, k1: the secret
    k1: np.uint64,
    ranks: Narrow,  # ranks, diffs, times: the rows, as in operators.updates.Updates
    diffs: Ints,
    times: Ints,
    since: np.int64,  # of the versions of a group at or before this time, only the last version remains
    bits: int,  # the number of leading bits for the sort
    narrow: Narrow,  # int32[6 n + 1 + 2**bits]: scratch memory; the ranks of the updates (2 n), ...
    words: Words,  # uint64[5 n]: scratch memory
    long: Ints,  # int64[13 n]: rows of updates (2 n) and versions, last versions and places of groups (n each), ...
    update_count: Ints,  # int64[2 n]: the count that each update inserts or retracts
    update_diff: Ints,  # int64[2 n]: the diff of each update
    high: Words,  # high to count: the versions, sorted by identity and time; low may have size 0
    low: Words,
    time: Ints,
    live: Flags,
    count: Ints,
) -> tuple[int, int, int, int, int]:
    """Add diffs to the counts of groups, and write the updates and the versions of the groups. O(n + 2**bits).

    Returns the number of updates, the number of versions, a row whose sum overflows (-1 if there is no overflow), the
    number of groups, and the change of the number of groups with a count.

    >>> column, addresses = np.array([9, 4, 9]), np.zeros((1, 5), np.uint64)
    >>> addresses[0, 1], plan = column.ctypes.data, np.array([[0, 0, 8]])
    >>> word, long, narrow = (lambda n, kind=kind: np.zeros(n, kind) for kind in (np.uint64, np.int64, np.int32))
    >>> rows, counts, diffs = long(39), long(6), long(6)
    >>> from ddflow.kernels.index import describe_shard
    >>> shard = describe_shard(table := np.zeros((4, 3), np.uint64), 2, 0, 0, 2)
    >>> probe = np.array([shard] * 2, np.uint64), np.uint64(63), np.uint64(24)
    >>> count_rows(*probe, addresses, plan, np.uint64(1), np.uint64(2),
    ...     narrow(3), long(3) + 1, long(1), np.int64(0), 1, narrow(21), word(15), rows, counts, diffs, word(3),
    ...     word(0), long(3), np.zeros(3, np.uint8), long(3))
    (2, 2, -1, 2, 2)
    """
    n, grown, rank = ranks.size, 0, np.int64(-1)
    update_row, version_row, last, place = long[: 2 * n], long[2 * n : 3 * n], long[3 * n : 4 * n], long[4 * n : 5 * n]
    reference, counts, net, touched = long[5 * n : 6 * n], long[6 * n : 7 * n], long[7 * n : 8 * n], long[8 * n : 9 * n]
    raw = long[9 * n :]
    update_rank, version_rank, group = narrow[: 2 * n], narrow[2 * n : 3 * n], narrow[3 * n : 4 * n]
    permutation, starts, at = narrow[4 * n : 5 * n], narrow[5 * n : 6 * n + 1], narrow[6 * n + 1 :]
    ids, seconds, held = words[:n], words[n : n + low.size], words[2 * n : 3 * n]
    first, second = words[3 * n : 4 * n], words[4 * n : 4 * n + low.size]
    hash_rows(addresses, keys, k0, k1, True, first, second)
    g = np.int64(sort_rows(first, second, bits, at, permutation, ids, seconds, starts))
    none = raw[:0].reshape((0, 0))
    look_up_keys(directory, shift, line, ids, seconds, starts[:g], place[:g], reference[:g], held[:g], none)
    for i in range(g):
        counts[i] = np.int64(held[i]) if reference[i] & LIVE != 0 else 0
        grown -= int(counts[i] != 0)
        for p in range(starts[i], starts[i + 1]):
            group[permutation[p]] = i
    while rank + 1 < times.size and times[rank + 1] <= since:
        rank += 1
    given = (group, ranks, diffs, counts[:g], rank, net[:g], touched, update_rank, update_row, update_count)
    made = (update_diff, version_rank, raw[:n], raw[n : 2 * n], raw[2 * n : 3 * n], last[:g])
    updates, versions, refused = update_group_counts(*(given + made))
    if refused < 0:
        for i in range(g):
            grown += int(counts[i] != 0)
        read = (versions, raw, version_rank, group, ids, seconds, starts, times, last[:g])
        written = (version_row, high, low, time, live, count)
        _write_versions(*(read + written))
    return updates, versions, refused, int(g), grown

"""Use a Bloom filter over the identities of a batch to exclude keys that the batch certainly does not have.

It is a split-block filter: an identity sets bits in one block of 256 bits, half a cache line, namely one bit in each of
the eight 32-bit parts (Putze, Sanders and Singler; Impala and Parquet use the same parts). The position of the identity
in the batch's range selects the block, so sorted keys read the filter from front to back. The low bits of the identity
select the bits in the block. Identities are uniform, so they are not hashed again.

Guarantees: an added identity always passes. At 10 bits for each key, one in eighty other identities passes.
Limits: in a filter of more than 2**24 blocks, more of the other identities pass. The size of a filter is fixed.
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import mulhi, prefetch

BITS = 10
"""Bits for each key."""
BLOCK = 4
"""Words in each block."""
AHEAD = 16
"""Number of keys between the current key and the one whose block is prefetched.

Sorted keys are too far apart for the hardware prefetcher.
"""


def count_blocks(n: int) -> int:
    """Count the blocks of `BLOCK` words for ``n`` identities at `BITS` bits each, at least one."""
    return max(1, -(-n * BITS // (64 * BLOCK)))


@kernel
def _build_mask(bits: np.uint64) -> np.uint64:
    """Set one bit in each half of a word, chosen by the ten lowest bits."""
    one, half = np.uint64(1), np.uint64(31)
    return (one << (bits & half)) | (one << (((bits >> np.uint64(5)) & half) | np.uint64(32)))


@kernel
def _mix_identity(high: np.uint64, low: np.uint64) -> np.uint64:
    """Compute the word whose low 40 bits choose the bits in a block.

    The second identity word may be only a flag (whether a key is null), so its bits are spread first. For one-word
    identities it is 0 and stays 0.
    """
    return high ^ (low * np.uint64(0x9E3779B97F4A7C15))


@kernel
def add_identities(high: Words, low: Words, base: np.uint64, shift: np.uint64, words: Words) -> None:
    """Add identities to a filter.

    Input: high, low uint64[n] (low of size 0 for one-word identities), in any order, also repeated. Sorted identities
    walk the filter front to back. base, shift: the range of the batch.
    Output: words uint64[blocks * 4], zero at first. Bits are only added, so columns that cannot be passed whole
    (mapped, read-only) are copied and passed piece by piece. O(n).

    >>> words = np.zeros(4, np.uint64)
    >>> add_identities(np.array([0], np.uint64), np.empty(0, np.uint64), np.uint64(0), np.uint64(0), words)
    >>> [hex(word) for word in words.tolist()]
    ['0x100000001', '0x100000001', '0x100000001', '0x100000001']
    """
    wide, blocks = low.size != 0, np.uint64(words.size >> 2)
    data, ahead = np.uint64(words.ctypes.data), high.size - AHEAD
    for i in range(high.size):
        if i < ahead:
            prefetch(data + (mulhi((high[i + AHEAD] - base) << shift, blocks) << np.uint64(5)))
        at = np.int64(mulhi((high[i] - base) << shift, blocks) << np.uint64(2))
        bits = _mix_identity(high[i], low[i] if wide else np.uint64(0))
        words[at] |= _build_mask(bits)
        words[at + 1] |= _build_mask(bits >> np.uint64(10))
        words[at + 2] |= _build_mask(bits >> np.uint64(20))
        words[at + 3] |= _build_mask(bits >> np.uint64(30))


@kernel
def find_possible_groups(
    high: Words, low: Words, starts: Narrow, wanted: Ints, base: np.uint64, shift: np.uint64, words: Words, out: Ints
) -> int:
    """Write the wanted groups whose identities may be in the filter; return their number. O(m).

    Input:
    - high, low: uint64[n], sorted (low of size 0 for one-word identities).
    - starts: int32[g], the first row of each group.
    - wanted: int64[m], ascending group numbers, none below the batch's range.
    - base, shift: the range of the batch.
    - words: uint64[blocks * 4], the filter.

    Output: out int64[m], in the order of ``wanted``; it may be ``wanted`` itself.

    >>> one, out = np.array([7], np.uint64), np.empty(1, np.int64)
    >>> find_possible_groups(one, np.empty(0, np.uint64), np.zeros(1, np.int32), np.array([0]), np.uint64(0),
    ...     np.uint64(0),
    ...      np.zeros(4, np.uint64), out)
    0

    >>> high, none = np.array([3, 5, 2**63], np.uint64), np.empty(0, np.uint64)
    >>> words, base, shift = np.zeros(BLOCK * count_blocks(2), np.uint64), np.uint64(0), np.uint64(0)
    >>> add_identities(high[:2], none, base, shift, words)
    >>> out = np.empty(3, np.int64)
    >>> find_possible_groups(high, none, np.arange(3, dtype=np.int32), np.arange(3), base, shift, words,
    ...     out), out[:2].tolist()
    (2, [0, 1])
    """
    wide, blocks = low.size != 0, np.uint64(words.size >> 2)
    data, ahead = np.uint64(words.ctypes.data), wanted.size - AHEAD
    passed = 0
    for i in range(wanted.size):
        if i < ahead:
            prefetch(data + (mulhi((high[starts[wanted[i + AHEAD]]] - base) << shift, blocks) << np.uint64(5)))
        group = wanted[i]
        row = starts[group]
        at = np.int64(mulhi((high[row] - base) << shift, blocks) << np.uint64(2))
        bits = _mix_identity(high[row], low[row] if wide else np.uint64(0))
        missing = _build_mask(bits) & ~words[at]
        missing |= _build_mask(bits >> np.uint64(10)) & ~words[at + 1]
        missing |= _build_mask(bits >> np.uint64(20)) & ~words[at + 2]
        missing |= _build_mask(bits >> np.uint64(30)) & ~words[at + 3]
        # Write every group, and count only the possible ones: the processor would mispredict a branch half the time.
        out[passed] = group
        passed += int(missing == np.uint64(0))
    return passed

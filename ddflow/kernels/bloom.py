"""Exclude keys that a batch certainly does not have, by a Bloom filter over the identities of the batch.

The filter is a split-block Bloom filter (Putze, Sanders and Singler), as in Impala and Parquet. A block has 256 bits,
half a cache line, in eight parts of 32 bits. An identity sets one bit in each part of one block. The position of the
identity in the batch's range of identities selects the block, so sorted keys read the filter from front to back. The
low bits of the identity select the bits in the block. Identities are uniform, so they are not hashed again.

Guarantees: an added identity always passes. At 10 bits for each key, an identity that was not added passes with a
probability of 1/80.
Limits: in a filter of more than 2**24 blocks, this probability is higher. The size of a filter is fixed.
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
"""Number of keys between the current key and the key whose block is prefetched.

The blocks of sorted keys are too far apart for the hardware prefetcher.
"""


def count_blocks(n: int) -> int:
    """Return the number of blocks for ``n`` identities at `BITS` bits each, at least 1."""
    return max(1, -(-n * BITS // (64 * BLOCK)))


@kernel
def _build_mask(bits: np.uint64) -> np.uint64:
    """Return a 64-bit word in which each half has one set bit.  The ten lowest bits of ``bits`` choose the two bits."""
    one, half = np.uint64(1), np.uint64(31)
    return (one << (bits & half)) | (one << (((bits >> np.uint64(5)) & half) | np.uint64(32)))


@kernel
def _mix_identity(high: np.uint64, low: np.uint64) -> np.uint64:
    """Compute a word from an identity.

    The low 40 bits of this word choose the bits in a block. In some identities, the second word is only a flag that
    marks null keys. Therefore a multiplication spreads the bits of the second word first. For one-word identities, the
    second word is 0.
    """
    return high ^ (low * np.uint64(0x9E3779B97F4A7C15))


@kernel
def add_identities(high: Words, low: Words, base: np.uint64, shift: np.uint64, words: Words) -> None:
    """Add identities to a filter. O(n).

    The identities of a batch can be added in several calls, because a call only sets bits.

    Input:
    - high, low, uint64[n]: the identities in any order, possibly repeated (low has size 0 for one-word identities). If
      the identities are sorted, the kernel writes the filter from front to back.
    - base, shift: the range of the batch.

    Output:
    - words, uint64[blocks * 4]: the filter, which is all 0 before the first call.

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
    """Write the wanted groups whose identities are possibly in the filter, and return the number of these groups. O(m).

    Input:
    - high, low, uint64[n]: the sorted identities (low has size 0 for one-word identities).
    - starts, int32[g]: the first row of each group.
    - wanted, int64[m]: the ascending group numbers, none of them below the batch's range.
    - base, shift: the range of the batch.
    - words, uint64[blocks * 4]: the filter.

    Output:
    - out, int64[m]: the groups in the order of ``wanted``. ``out`` may be the same array as ``wanted``.

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
        # Write every group, but move the output position forward only after a possible group. The processor would
        # mispredict half of the branches here.
        out[passed] = group
        passed += int(missing == np.uint64(0))
    return passed

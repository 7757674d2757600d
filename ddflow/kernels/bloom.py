"""A split-block Bloom filter over the identities of a batch: the keys that need not be searched for there.

An identity has one block of 256 bits, half a cache line, and one bit in each of its eight 32-bit parts (Putze, Sanders
and Singler; the parts are those of Impala and Parquet). The block is chosen by where in the range of the batch the
identity lies, so a sorted step walks the filter front to back; the bits come from the other end of the word. Identities
are uniform, so nothing is hashed again.

Guarantees: never filters out an identity that was filled in; of the others, one in eighty passes at 10 bits a key.
Limits: a filter of more than 2**24 blocks lets more pass. It does not forget or grow.
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import mulhi, prefetch

BITS = 10
"""Bits a key."""
BLOCK = 4
"""Words a block."""
AHEAD = 16
"""How many keys ahead a walk asks for their block: sorted keys are too far apart for the machine to guess."""


def count_blocks(n: int) -> int:
    """How many blocks of `BLOCK` words a filter of ``n`` identities takes: `BITS` bits each, one block at least."""
    return max(1, -(-n * BITS // (64 * BLOCK)))


@kernel
def _build_mask(bits: np.uint64) -> np.uint64:
    """Set a bit in each half of a word, by the ten lowest bits."""
    one, half = np.uint64(1), np.uint64(31)
    return (one << (bits & half)) | (one << (((bits >> np.uint64(5)) & half) | np.uint64(32)))


@kernel
def _mix_identity(high: np.uint64, low: np.uint64) -> np.uint64:
    """Return the word that the bits are chosen by: 40 bits from the low end.

    The low word may be a mere flag (whether a key is null), so it is spread first; 0, for one-word identities, stays 0.
    """
    return high ^ (low * np.uint64(0x9E3779B97F4A7C15))


@kernel
def add_identities(high: Words, low: Words, base: np.uint64, shift: np.uint64, words: Words) -> None:
    """Add identities to a filter.

    high, low: uint64[n] (low of size 0 for one-word identities), in any order, repeated or not; sorted ones walk the
    filter front to back.  base, shift: as for the batch.  words: uint64[blocks * 4], zero at first, changed.  What was
    filled before stays, so columns that may not be passed whole (mapped, read-only) are copied and passed piece by
    piece.  O(n), 3 to 5 ns each.

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
    """Write those of the wanted groups whose identities may have been filled in; return how many.

    high, low: uint64[n], sorted (low of size 0 for one-word identities).  starts: int32[g], the row that begins each
    group.  wanted: int64[m], ascending numbers of groups, none below the range.  base, shift: of the batch.  words:
    uint64[blocks * 4], read.  out: int64[m], written up to the count, in the order of ``wanted``; it may be ``wanted``
    itself.  O(m), 5 to 7 ns a group.

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
        # Written at any rate, counted if it may be in: a branch here would be guessed wrong half the time.
        out[passed] = group
        passed += int(missing == np.uint64(0))
    return passed

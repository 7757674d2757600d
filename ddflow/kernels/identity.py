"""Compute identities: one or two uniform words for each row, by a bijective mix or by SipHash-1-3 keyed with a secret.

A row of one word is mixed bijectively, so different values have different identities. Other rows are absorbed word by
word into a SipHash state of four words (Aumasson and Bernstein, "SipHash", 2012). The probability that 1e10 rows have a
collision is about 1e-19. The encoding is prefix-free: the length of a text precedes its bytes, and no value is encoded
like a null. Users who do not know the secret cannot craft values with equal identities or leading bits. Buckets, slots
and partitions rely on uniform bits.

>>> import numpy as np
>>> words, out = np.arange(3, dtype=np.uint64), np.empty(3, np.uint64)
>>> mix_words(words, np.uint64(1), np.uint64(2), out)
>>> len(set(out.tolist()))
3
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints2d, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u8, load_u16, load_u32, load_u64

SIGNED, UNSIGNED, FLOAT, BIT, BYTES = range(5)
"""How `hash_rows` reads a column: as integers, as float64, as bits, or as byte strings with offsets."""
NULL = 0x9E3779B97F4A7C15
"""The hash of a null in a single column of words is this, XOR the first word of the secret."""


@kernel
def _mix_word(word: np.uint64, k0: np.uint64, k1: np.uint64) -> np.uint64:
    """Mix one word, as `mix_words` does."""
    z = word ^ k0
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z ^= k1
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def mix_words(words: Words, k0: np.uint64, k1: np.uint64, out: Words) -> None:
    """Write a keyed bijection of every word to ``out`` (splitmix64's finalizer around two secret words). O(n).

    - words, uint64[n]: the input words.
    - k0, k1: the secret.
    - out, uint64[n]: the output, which may be the same array as ``words``.

    >>> out = np.empty(1, np.uint64)
    >>> mix_words(np.zeros(1, np.uint64), np.uint64(0), np.uint64(0), out)
    >>> int(out[0])
    0
    """
    for i in range(words.size):
        out[i] = _mix_word(words[i], k0, k1)


@kernel
def _unmix_word(word: np.uint64, k0: np.uint64, k1: np.uint64) -> np.uint64:
    """Undo `mix_words`. The steps are those of `mix_words` in reverse order, with the inverse of each factor."""
    z = word ^ (word >> np.uint64(31)) ^ (word >> np.uint64(62))
    z *= np.uint64(0x319642B2D24D8EC3)
    z ^= (z >> np.uint64(27)) ^ (z >> np.uint64(54))
    z = (z ^ k1) * np.uint64(0x96DE1B173F119089)
    return z ^ (z >> np.uint64(30)) ^ (z >> np.uint64(60)) ^ k0


@kernel
def unmix_words(words: Words, keep: Flags, k0: np.uint64, k1: np.uint64, out: Words) -> None:
    """Compute the words from which `mix_words` made ``words``. Write 0 for rows that ``keep`` does not mark. O(n).

    - words, uint64[n]: the output of `mix_words`.
    - keep, uint8[n]: the marks. If ``keep`` has size 0, every row counts as marked.
    - k0, k1: the secret.
    - out, uint64[n]: the result.

    >>> out = np.array([7, 8], np.uint64)
    >>> mix_words(out, np.uint64(1), np.uint64(2), out)
    >>> unmix_words(out, np.array([0, 1], np.uint8), np.uint64(1), np.uint64(2), out)
    >>> out.tolist()
    [0, 8]
    """
    if keep.size == 0:
        for i in range(words.size):
            out[i] = _unmix_word(words[i], k0, k1)
        return
    for i in range(words.size):
        out[i] = _unmix_word(words[i], k0, k1) * np.uint64(keep[i])


@kernel
def canonicalize_floats(words: Words) -> None:
    """Canonicalize the bits of float64 values in place: every NaN gets the same bits, and -0.0 becomes 0.0. O(n).

    - words, uint64[n]: the bits.

    >>> bits = np.array([-0.0, np.nan]).view(np.uint64)
    >>> canonicalize_floats(bits)
    >>> bits.view(np.float64).tolist()
    [0.0, nan]
    """
    for i in range(words.size):
        size = words[i] & np.uint64(0x7FFFFFFFFFFFFFFF)
        if size == np.uint64(0):
            words[i] = np.uint64(0)
        elif size > np.uint64(0x7FF0000000000000):
            words[i] = np.uint64(0x7FF8000000000000)


@kernel
def make_floats_sortable(words: Words) -> None:
    """Convert canonical float64 bits, in place, to words whose order as int64 is the order of the values. O(n).

    NaN is the largest value.

    - words, uint64[n]: the bits, which the kernel replaces by the sortable words.

    >>> bits = np.array([-1.5, 0.0, 2.0, np.nan]).view(np.uint64)
    >>> make_floats_sortable(bits)
    >>> bool((np.diff(bits.view(np.int64)) > 0).all())
    True
    """
    for i in range(words.size):
        if words[i] >> np.uint64(63) == np.uint64(1):
            words[i] ^= np.uint64(0x7FFFFFFFFFFFFFFF)


@kernel
def unpack_bits(address: np.uint64, first: np.int64, out: Flags) -> None:
    """Unpack ``out.size`` bits, from bit number ``first`` after ``address`` on, to bytes of 0 and 1. O(n).

    - address: the address of a bitmap, in which the least significant bit of a byte is the first bit.
    - out, uint8[n]: the unpacked bits.

    >>> bits, out = np.array([0b1010], np.uint8), np.empty(3, np.uint8)
    >>> unpack_bits(np.uint64(bits.ctypes.data), np.int64(1), out)
    >>> out.tolist()
    [1, 0, 1]
    """
    for i in range(out.size):
        at = first + i
        byte = load_u8(address + np.uint64(at >> 3))
        out[i] = (byte >> np.uint64(at & 7)) & np.uint64(1)


@kernel
def _sip_round(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Apply one SipRound to the four words of a state."""
    a += b
    b = (b << np.uint64(13)) | (b >> np.uint64(51))
    b ^= a
    a = (a << np.uint64(32)) | (a >> np.uint64(32))
    c += d
    d = (d << np.uint64(16)) | (d >> np.uint64(48))
    d ^= c
    a += d
    d = (d << np.uint64(21)) | (d >> np.uint64(43))
    d ^= a
    c += b
    b = (b << np.uint64(17)) | (b >> np.uint64(47))
    b ^= c
    c = (c << np.uint64(32)) | (c >> np.uint64(32))
    return a, b, c, d


@kernel
def start_hashes(k0: np.uint64, k1: np.uint64, state: Words2d) -> None:
    """Initialize the SipHash state of every row from the secret, for 128-bit output. O(n).

    - k0, k1: the secret.
    - state, uint64[n, 4]: the states, which the kernel writes.

    >>> state = np.empty((1, 4), np.uint64)
    >>> start_hashes(np.uint64(1), np.uint64(2), state)
    """
    for i in range(state.shape[0]):
        state[i, 0] = k0 ^ np.uint64(0x736F6D6570736575)
        state[i, 1] = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
        state[i, 2] = k0 ^ np.uint64(0x6C7967656E657261)
        state[i, 3] = k1 ^ np.uint64(0x7465646279746573)


@kernel
def absorb_words(state: Words2d, words: Words, valid: Flags) -> None:
    """Absorb one word for each row. For a null row, absorb the fixed pattern of null. O(n).

    - state, uint64[n, 4]: the state of each row, which the kernel updates.
    - words, uint64[n]: the word of each row.
    - valid, uint8[n]: 0 for each null row. ``valid`` has size 0 if no row is null.

    >>> state = np.zeros((1, 4), np.uint64)
    >>> absorb_words(state, np.ones(1, np.uint64), np.empty(0, np.uint8))
    """
    for i in range(words.size):
        a, b, c, d = state[i, 0], state[i, 1], state[i, 2], state[i, 3]
        if valid.size == 0 or valid[i] != 0:
            word = words[i]
            a, b, c, d = _sip_round(a, b, c, d ^ word)
            a ^= word
        else:
            a, b, c, d = _sip_round(a, b, c ^ np.uint64(0xA5), d)
        state[i, 0], state[i, 1], state[i, 2], state[i, 3] = a, b, c, d


@kernel
def _absorb_string(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, at: np.uint64, size: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Absorb the length and the bytes of one byte string into the four words of a state."""
    a, b, c, d = _sip_round(a, b, c, d ^ size)
    a ^= size
    for _ in range(size >> np.uint64(3)):
        word = load_u64(at)
        a, b, c, d = _sip_round(a, b, c, d ^ word)
        a ^= word
        at += np.uint64(8)
    rest = size & np.uint64(7)
    if rest != np.uint64(0):
        if size > np.uint64(8):  # read the last bytes with those before them
            word = load_u64(at + rest - np.uint64(8)) >> (np.uint64(64) - (rest << np.uint64(3)))
        elif rest >= np.uint64(4):  # the first and the last four bytes overlap
            word = load_u32(at) | (load_u32(at + rest - np.uint64(4)) << ((rest << np.uint64(3)) - np.uint64(32)))
        else:  # the first, the middle and the last byte, of which some can be the same
            half = rest >> np.uint64(1)
            word = load_u8(at) | (load_u8(at + half) << (half << np.uint64(3)))
            word |= load_u8(at + rest - np.uint64(1)) << ((rest << np.uint64(3)) - np.uint64(8))
        a, b, c, d = _sip_round(a, b, c, d ^ word)
        a ^= word
    return a, b, c, d


@kernel
def absorb_bytes(state: Words2d, ends: Words, data: np.uint64, valid: Flags) -> None:
    """Absorb the length and the bytes of one byte string for each row, or the fixed pattern of null for a null row.

    O(n + bytes).

    - state, uint64[n, 4]: the state of each row, which the kernel updates.
    - ends, uint64[n + 1]: the offsets of the byte strings after ``data``.
    - data: the address of the bytes.
    - valid, uint8[n]: 0 for each null row. ``valid`` has size 0 if no row is null.

    >>> state, data = np.zeros((1, 4), np.uint64), np.frombuffer(b"abc", np.uint8)
    >>> absorb_bytes(state, np.array([0, 3], np.uint64), np.uint64(data.ctypes.data), np.empty(0, np.uint8))
    """
    for i in range(state.shape[0]):
        a, b, c, d = state[i, 0], state[i, 1], state[i, 2], state[i, 3]
        if valid.size == 0 or valid[i] != 0:
            a, b, c, d = _absorb_string(a, b, c, d, data + ends[i], ends[i + 1] - ends[i])
        else:
            a, b, c, d = _sip_round(a, b, c ^ np.uint64(0xA5), d)
        state[i, 0], state[i, 1], state[i, 2], state[i, 3] = a, b, c, d


@kernel
def absorb_lists(state: Words2d, ends: Words, words: Words, valid: Flags) -> None:
    """Absorb the length and the words of one list for each row, or the fixed pattern of null for a null row.

    O(n + children).

    - state, uint64[n, 4]: the state of each row, which the kernel updates.
    - ends, uint64[n + 1]: the offsets of the lists in ``words``.
    - words, uint64: the hashes of the children.
    - valid, uint8[n]: 0 for each null row. ``valid`` has size 0 if no row is null.

    >>> state = np.zeros((1, 4), np.uint64)
    >>> absorb_lists(state, np.array([0, 2], np.uint64), np.arange(2, dtype=np.uint64), np.empty(0, np.uint8))
    """
    for i in range(state.shape[0]):
        a, b, c, d = state[i, 0], state[i, 1], state[i, 2], state[i, 3]
        if valid.size == 0 or valid[i] != 0:
            size = ends[i + 1] - ends[i]
            a, b, c, d = _sip_round(a, b, c, d ^ size)
            a ^= size
            for j in range(np.int64(ends[i]), np.int64(ends[i + 1])):
                a, b, c, d = _sip_round(a, b, c, d ^ words[j])
                a ^= words[j]
        else:
            a, b, c, d = _sip_round(a, b, c ^ np.uint64(0xA5), d)
        state[i, 0], state[i, 1], state[i, 2], state[i, 3] = a, b, c, d


@kernel
def finish_hashes(state: Words2d, high: Words, low: Words) -> None:
    """Write the hash of every row: 128 bits, or only the first 64 bits if ``low`` has size 0. O(n).

    - state, uint64[n, 4]: the state of each row.
    - high, uint64[n]: the first word of each hash, which the kernel writes.
    - low, uint64[n] or uint64[0]: the second word of each hash, which the kernel writes.

    >>> state, high = np.zeros((1, 4), np.uint64), np.empty(1, np.uint64)
    >>> finish_hashes(state, high, np.empty(0, np.uint64))
    """
    for i in range(high.size):
        a, b, c, d = state[i, 0], state[i, 1], state[i, 2] ^ np.uint64(0xEE), state[i, 3]
        for _ in range(3):
            a, b, c, d = _sip_round(a, b, c, d)
        high[i] = a ^ b ^ c ^ d
        if low.size != 0:
            b ^= np.uint64(0xDD)
            for _ in range(3):
                a, b, c, d = _sip_round(a, b, c, d)
            low[i] = a ^ b ^ c ^ d


@kernel
def _is_null(addresses: Words, column: int, row: int) -> bool:
    """Return whether a value is null. ``addresses``: as in `hash_rows`."""
    bits, at = addresses[column, 0], np.int64(addresses[column, 3]) + row
    if bits == np.uint64(0):
        return False
    return bool((load_u8(bits + np.uint64(at >> 3)) >> np.uint64(at & 7)) & np.uint64(1) == np.uint64(0))


@kernel
def _load_word(addresses: Words, column: int, kind: int, wide: int, row: int) -> np.uint64:
    """Load the canonical word of a value. ``addresses``: as in `hash_rows`."""
    start = addresses[column, 1]
    if kind == BIT:
        at = np.int64(addresses[column, 4]) + row
        return (load_u8(start + np.uint64(at >> 3)) >> np.uint64(at & 7)) & np.uint64(1)
    place = start + np.uint64(row * wide)
    if wide == 8:
        word = load_u64(place)
        size = word & np.uint64(0x7FFFFFFFFFFFFFFF)
        if kind == FLOAT and size == np.uint64(0):
            return np.uint64(0)
        return np.uint64(0x7FF8000000000000) if kind == FLOAT and size > np.uint64(0x7FF0000000000000) else word
    if wide == 4:
        word, sign = load_u32(place), np.uint64(1 << 31)
    elif wide == 2:
        word, sign = load_u16(place), np.uint64(1 << 15)
    else:
        word, sign = load_u8(place), np.uint64(1 << 7)
    return word if kind == UNSIGNED else (word ^ sign) - sign


@kernel
def hash_rows(
    addresses: Words2d, plan: Ints2d, k0: np.uint64, k1: np.uint64, identities: bool, high: Words, low: Words
) -> None:
    """Hash rows by the addresses of their columns, row by row. O(n) for each column.

    The hashes are those of `mix_words` for a single column of words, and of `start_hashes`, `absorb_words`,
    `absorb_bytes` and `finish_hashes` for other columns.

    - addresses, uint64[columns, 5]: as in ``columns.rows.Rows``.
    - plan, int64[m, 3]: for each column to hash, its position in ``addresses``, `SIGNED` to `BYTES`, and the bytes of a
      value or of an offset.
    - k0, k1: the secret.
    - identities: whether to compute identities. Otherwise, the kernel computes value hashes.
    - high, low, uint64[n]: the hashes, which the kernel writes. ``low`` has size 0 for hashes of one word.

    >>> column, addresses, high = np.array([7, 8]), np.zeros((1, 5), np.uint64), np.empty(2, np.uint64)
    >>> addresses[0, 1], secret, out = column.ctypes.data, (np.uint64(1), np.uint64(2)), np.empty(2, np.uint64)
    >>> hash_rows(addresses, np.array([[0, SIGNED, 8]]), *secret, True, high, high[:0])
    >>> mix_words(column.view(np.uint64), *secret, out)
    >>> high.tolist() == out.tolist()
    True
    """
    columns = plan.shape[0]
    if columns == 1 and plan[0, 1] != BYTES:
        for i in range(high.size):
            null = _is_null(addresses, plan[0, 0], i)
            word = np.uint64(0) if null else _load_word(addresses, plan[0, 0], plan[0, 1], plan[0, 2], i)
            high[i] = k0 ^ np.uint64(NULL) if null and not identities else _mix_word(word, k0, k1)
            if low.size != 0:
                low[i] = np.uint64(null)
        return
    if columns == 0 and not identities:
        high[:] = 0
        return
    for i in range(high.size):
        a, b = k0 ^ np.uint64(0x736F6D6570736575), k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
        c, d = k0 ^ np.uint64(0x6C7967656E657261), k1 ^ np.uint64(0x7465646279746573)
        for p in range(columns):
            column, kind, wide = plan[p, 0], plan[p, 1], plan[p, 2]
            if _is_null(addresses, column, i):
                a, b, c, d = _sip_round(a, b, c ^ np.uint64(0xA5), d)
            elif kind == BYTES:
                place = addresses[column, 1] + np.uint64(i * wide)
                begin = load_u64(place) if wide == 8 else load_u32(place)
                end = load_u64(place + np.uint64(8)) if wide == 8 else load_u32(place + np.uint64(4))
                a, b, c, d = _absorb_string(a, b, c, d, addresses[column, 2] + begin, end - begin)
            else:
                word = _load_word(addresses, column, kind, wide, i)
                a, b, c, d = _sip_round(a, b, c, d ^ word)
                a ^= word
        c ^= np.uint64(0xEE)
        for _ in range(3):
            a, b, c, d = _sip_round(a, b, c, d)
        high[i] = a ^ b ^ c ^ d
        if low.size != 0:
            b ^= np.uint64(0xDD)
            for _ in range(3):
                a, b, c, d = _sip_round(a, b, c, d)
            low[i] = a ^ b ^ c ^ d

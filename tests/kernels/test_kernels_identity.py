"""Test identity kernels: the mix is a bijection, the hash is SipHash-1-3, and bits and floats are read right."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels import identity as kernels

pytestmark = pytest.mark.kernels
WORD = 2**64 - 1
words = st.one_of(st.integers(0, WORD), st.integers(0, 3), st.sampled_from([WORD, 2**63, 2**63 - 1]))
maybe_words = st.one_of(st.none(), words)
NONE: Any = np.empty(0, np.uint64)
ALL_VALID: Any = np.empty(0, np.uint8)


def mixed(values: list[int], k0: int, k1: int) -> list[int]:
    out = np.array(values, np.uint64)
    kernels.mix_words(out, np.uint64(k0), np.uint64(k1), out)
    return out.tolist()  # type: ignore[no-any-return]


def unmixed(z: int, k0: int, k1: int) -> int:
    """The inverse of the mix, step by step backwards."""

    def unshift(value: int, by: int) -> int:
        out = value
        for _ in range(64 // by + 1):
            out = value ^ (out >> by)
        return out

    z = unshift(z, 31) * pow(0x94D049BB133111EB, -1, 2**64) & WORD
    z = unshift(z, 27) ^ k1
    z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & WORD
    return unshift(z, 30) ^ k0


class Sip:
    """SipHash-1-3 of 64-bit words with 128 bits of output, in Python integers (Aumasson and Bernstein, 2012)."""

    def __init__(self, k0: int, k1: int) -> None:
        a, b, c, d = (int.from_bytes(part, "big") for part in (b"somepseu", b"dorandom", b"lygenera", b"tedbytes"))
        self.v = [k0 ^ a, k1 ^ b ^ 0xEE, k0 ^ c, k1 ^ d]

    def round(self) -> None:
        def left(x: int, by: int) -> int:
            return (x << by | x >> (64 - by)) & WORD

        a, b, c, d = self.v
        a, c = (a + b) & WORD, (c + d) & WORD
        b, d = left(b, 13) ^ a, left(d, 16) ^ c
        a = left(a, 32)
        c, a = (c + b) & WORD, (a + d) & WORD
        b, d = left(b, 17) ^ c, left(d, 21) ^ a
        self.v = [a, b, left(c, 32), d]

    def word(self, word: int | None) -> None:
        if word is None:
            self.v[2] ^= 0xA5
            self.round()
            return
        self.v[3] ^= word
        self.round()
        self.v[0] ^= word

    def text(self, text: bytes | None) -> None:
        self.word(None if text is None else len(text))
        for i in range(0, len(text or b""), 8):
            self.word(int.from_bytes((text or b"")[i : i + 8], "little"))

    def finish(self) -> tuple[int, int]:
        out = []
        self.v[2] ^= 0xEE
        for _ in range(2):
            for _ in range(3):
                self.round()
            out.append(self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3])
            self.v[1] ^= 0xDD
        return out[0], out[1]


def started(n: int, k0: int, k1: int) -> Any:
    state = np.empty((n, 4), np.uint64)
    kernels.start_hashes(np.uint64(k0), np.uint64(k1), state)
    return state


def finished(state: Any) -> list[tuple[int, int]]:
    high, low = np.empty(len(state), np.uint64), np.empty(len(state), np.uint64)
    kernels.finish_hashes(state, high, low)
    only = np.empty(len(state), np.uint64)
    kernels.finish_hashes(state, only, NONE)
    assert only.tolist() == high.tolist()
    return list(zip(high.tolist(), low.tolist(), strict=True))


def validity(values: list[Any]) -> Any:
    return np.array([value is not None for value in values], np.uint8) if None in values else ALL_VALID


@given(st.lists(words, max_size=20), words, words, st.data())
def test_the_mix_can_be_undone_so_no_two_words_collide(
    values: list[int], k0: int, k1: int, data: st.DataObject
) -> None:
    assert [unmixed(z, k0, k1) for z in mixed(values, k0, k1)] == values
    keep = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    for kept in ([], keep):
        out = np.array(mixed(values, k0, k1), np.uint64)
        kernels.unmix_words(out, np.array(kept, np.uint8), np.uint64(k0), np.uint64(k1), out)
        assert out.tolist() == [value if not kept or kept[i] else 0 for i, value in enumerate(values)]


def test_the_mix_spreads_neighbours_over_the_leading_bits_differently_for_every_secret() -> None:
    one, two = (mixed(list(range(256)), k0, 3) for k0 in (1, 2))
    assert len({z >> 56 for z in one}) > 128
    assert sum(a == b for a, b in zip(one, two, strict=True)) == 0


@given(st.lists(maybe_words, min_size=1, max_size=5), st.lists(maybe_words, min_size=1, max_size=5), words, words)
def test_words_are_hashed_as_siphash_says(one: list[int | None], two: list[int | None], k0: int, k1: int) -> None:
    n = min(len(one), len(two))
    state, sips = started(n, k0, k1), [Sip(k0, k1) for _ in range(n)]
    for column in (one[:n], two[:n]):
        kernels.absorb_words(state, np.array([value or 0 for value in column], np.uint64), validity(column))
        for sip, value in zip(sips, column, strict=True):
            sip.word(value)
    assert finished(state) == [sip.finish() for sip in sips]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=5), st.integers(0, 3), words)
def test_texts_are_hashed_as_siphash_says_wherever_they_begin(texts: list[bytes | None], skip: int, k0: int) -> None:
    data = np.frombuffer(b"?" * skip + b"".join(text or b"" for text in texts) + b"!", np.uint8).copy()
    ends = np.cumsum([skip] + [len(text or b"") for text in texts]).astype(np.uint64)
    state, sips = started(len(texts), k0, 1), [Sip(k0, 1) for _ in texts]
    kernels.absorb_bytes(state, ends, np.uint64(data.ctypes.data), validity(texts))
    for sip, text in zip(sips, texts, strict=True):
        sip.text(text)
    assert finished(state) == [sip.finish() for sip in sips]


def test_a_megabyte_of_text_is_hashed_to_its_last_byte() -> None:
    texts = [b"x" * (1 << 20), b"x" * (1 << 20) + b"\0", b"x" * ((1 << 20) - 1) + b"y"]
    if kernels.absorb_bytes.__class__.__name__ == "InterpretedKernel":  # plain Python takes its time
        texts = [text[-1024:] for text in texts]
    data = np.frombuffer(b"".join(texts), np.uint8).copy()
    state = started(3, 1, 2)
    ends = np.cumsum([0] + [len(text) for text in texts]).astype(np.uint64)
    kernels.absorb_bytes(state, ends, np.uint64(data.ctypes.data), ALL_VALID)
    assert len(set(finished(state))) == 3


@given(st.lists(st.one_of(st.none(), st.lists(words, max_size=4)), min_size=1, max_size=5), words)
def test_lists_are_hashed_as_their_length_and_their_words(lists: list[list[int] | None], k0: int) -> None:
    children = np.array([9] + [word for one in lists for word in one or []], np.uint64)
    ends = np.cumsum([1] + [len(one or []) for one in lists]).astype(np.uint64)
    state, sips = started(len(lists), k0, 1), [Sip(k0, 1) for _ in lists]
    kernels.absorb_lists(state, ends, children, validity(lists))
    for sip, one in zip(sips, lists, strict=True):
        for word in [None] if one is None else [len(one), *one]:
            sip.word(word)
    assert finished(state) == [sip.finish() for sip in sips]


def test_what_could_be_mistaken_for_each_other_is_not() -> None:
    def hashed(*texts: bytes | None) -> tuple[int, int]:
        sip = Sip(1, 2)
        for text in texts:
            sip.text(text)
        return sip.finish()

    alike = [
        (b"",),
        (None,),
        (b"\0",),
        (b"a", b"bc"),
        (b"ab", b"c"),
        (b"abc", b""),
        (b"", b"abc"),
        (None, b"abc"),
        (b"abc", None),
        (b"abc",),
        (b"abc\0\0\0\0\0",),
        (b"abc\0\0\0\0",),
    ]
    assert len({hashed(*texts) for texts in alike}) == len(alike)


@given(st.lists(st.floats(width=64), max_size=20))
def test_canonical_floats_have_one_nan_and_one_zero_and_change_nothing_else(values: list[float]) -> None:
    bits = np.array(values, np.float64).view(np.uint64)
    kernels.canonicalize_floats(bits)
    expected = [math.nan if math.isnan(x) else x + 0.0 for x in values]
    assert bits.tolist() == [struct.unpack("<Q", struct.pack("<d", x))[0] for x in expected]


@pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF])
def test_every_nan_is_the_one_nan(bits: int) -> None:
    found = np.array([bits], np.uint64)
    kernels.canonicalize_floats(found)
    assert found.tolist() == [0x7FF8000000000000]


@given(st.lists(st.floats(), max_size=20))
def test_ordered_floats_compare_as_integers_like_the_values_with_nan_last(values: list[float]) -> None:
    bits = np.array(values, np.float64).view(np.uint64)
    kernels.canonicalize_floats(bits)
    kernels.make_floats_sortable(bits)
    found = bits.view(np.int64).tolist()
    keys = [(math.isnan(x), 0.0 if math.isnan(x) else x) for x in values]
    for i in range(len(values)):
        for j in range(len(values)):
            assert (found[i] < found[j]) == (keys[i] < keys[j])


@given(st.binary(min_size=1, max_size=6), st.data())
def test_bits_are_unpacked_from_any_odd_offset(packed: bytes, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 8 * len(packed)))
    out = np.empty(data.draw(st.integers(0, 8 * len(packed) - first)), np.uint8)
    memory = np.frombuffer(packed, np.uint8).copy()
    kernels.unpack_bits(np.uint64(memory.ctypes.data), np.int64(first), out)
    assert out.tolist() == [packed[at // 8] >> at % 8 & 1 for at in range(first, first + out.size)]

"""Run state machines over the events of each key, with a table of transitions.

States and symbols are small numbers. A set of up to 64 states is stored as a word with one bit for each state. An event
costs one iteration for each state in the set of its key. A transition can lead to no state. A missing transition is an
error.

Guarantees: a key without a state (because it is new, cleared or empty) enters the start state before its next event.
The walk (``walk``) decides beforehand which events are ignored and which events clear the state. Therefore the result
does not depend on how events are divided into steps.
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Narrow2d, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.fold import SKIP, TAKE, EventsByKey

NOTHING, REFUSED = -1, -2
"""Two values in place of the number of a state: one for a key without a state, and one for a missing transition."""


@kernel
def run_single_state(
    walked: EventsByKey, action: Flags, symbols: Narrow, table: Narrow2d, held: Narrow, start: int, out: Narrow
) -> tuple[int, int]:
    """Run a machine that has at most one state for each key. O(p + m).

    Input:
    - walked, action: the same as for `fold.choose_cells`.
    - symbols, int32[n]: the symbol of each row.
    - table, int32[states, symbols]: the next state for each state and symbol, NOTHING or REFUSED.
    - held, int32[g]: the stored state of each key, or NOTHING.
    - start: the start state.

    Output:
    - out, int32[m]: the state of each key after each of its times.

    Returns the row and the state of a missing transition, or (-1, -1) if no transition is missing.

    >>> few, flags = lambda *v: np.array(v, np.int32), lambda *v: np.array(v, np.uint8)
    >>> table, out = np.array([[1, REFUSED], [REFUSED, 0]], np.int32), few(-1)  # coin, push: locked, open
    >>> run_single_state(EventsByKey(few(0, 1, 2), few(0, 3), few(0, 1)), flags(TAKE, TAKE, TAKE), few(0, 1, 0), table,
    ...     few(-1), 0, out)
    (-1, -1)
    >>> out.tolist()
    [1]
    """
    permutation, key_times, keys = walked
    for key in range(keys.size - 1):
        state = held[key]
        for key_time in range(keys[key], keys[key + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                if action[place] == SKIP:
                    continue
                if action[place] != TAKE:
                    state = np.int32(NOTHING)
                    continue
                if state == NOTHING:
                    state = np.int32(start)
                row = permutation[place]
                following = table[state, symbols[row]]
                if following == REFUSED:
                    return int(row), int(state)
                state = following
            out[key_time] = state
    return -1, -1


@kernel
def run_state_sets(
    walked: EventsByKey,
    action: Flags,
    symbols: Narrow,
    table: Words2d,
    refused: Words,
    held: Words,
    start: np.uint64,
    out: Words,
) -> tuple[int, int]:
    """Run a machine that has a set of up to 64 states for each key. O(p * s), where s is the number of states in a set.

    The arguments are those of `run_single_state`, but with sets of states in place of single states:
    - table, uint64[states, symbols]: the set of next states for each state and symbol.
    - refused, uint64[symbols]: the set of states that have no transition for each symbol.
    - held, uint64[g]: the stored set of each key.
    - start: the set of start states.
    - out, uint64[m]: the set of each key after each of its times.

    >>> few, flags = lambda *v: np.array(v, np.int32), lambda *v: np.array(v, np.uint8)
    >>> table, out = np.array([[3], [2]], np.uint64), np.zeros(1, np.uint64)  # the first state stays and makes another
    >>> run_state_sets(EventsByKey(few(0), few(0, 1), few(0, 1)), flags(TAKE), few(0), table, np.zeros(1, np.uint64),
    ...      np.zeros(1, np.uint64), np.uint64(1), out), out.tolist()
    ((-1, -1), [3])
    """
    permutation, key_times, keys = walked
    none, low = np.uint64(0), np.uint64(1)
    for key in range(keys.size - 1):
        states = held[key]
        for key_time in range(keys[key], keys[key + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                if action[place] == SKIP:
                    continue
                if action[place] != TAKE:
                    states = none
                    continue
                if states == none:
                    states = start
                row = permutation[place]
                symbol, following = symbols[row], none
                if states & refused[symbol] != none:
                    return int(row), _find_lowest_bit(states & refused[symbol])
                for state in range(table.shape[0]):
                    if (states >> np.uint64(state)) & low != none:
                        following |= table[state, symbol]
                states = following
            out[key_time] = states
    return -1, -1


@kernel
def _find_lowest_bit(word: np.uint64) -> int:
    """Return the number of the lowest bit that is set, or 64 if no bit is set.

    >>> _find_lowest_bit(np.uint64(12))
    2
    """
    for bit in range(64):
        if (word >> np.uint64(bit)) & np.uint64(1) != np.uint64(0):
            return bit
    return 64


@kernel
def pack_state_sets(ends: Ints, codes: Narrow, out: Words) -> None:
    """Pack lists of states into words; list i is codes[ends[i] : ends[i + 1]]. O(codes).

    >>> out = np.zeros(2, np.uint64)
    >>> pack_state_sets(np.array([0, 2, 3]), np.array([0, 2, 1], np.int32), out), out.tolist()
    (None, [5, 2])
    """
    for i in range(out.size):
        word = np.uint64(0)
        for at in range(ends[i], ends[i + 1]):
            word |= np.uint64(1) << np.uint64(codes[at])
        out[i] = word


@kernel
def unpack_state_sets(words: Words, counts: Ints, codes: Narrow) -> int:
    """Unpack each word into an ascending list of states. O(64 n).

    Return the total number of states.

    Output:
    - counts, int64[n]: the length of each list.
    - codes: the lists, one after the other. The array must have space for all states.

    >>> counts, codes = np.zeros(2, np.int64), np.zeros(9, np.int32)
    >>> unpack_state_sets(np.array([5, 2], np.uint64), counts, codes), counts.tolist(), codes[:3].tolist()
    (3, [2, 1], [0, 2, 1])
    """
    written = 0
    for i in range(words.size):
        begin, rest, bit = written, words[i], 0
        while rest != np.uint64(0):
            if rest & np.uint64(1) != np.uint64(0):
                codes[written] = bit
                written += 1
            rest >>= np.uint64(1)
            bit += 1
        counts[i] = written - begin
    return written

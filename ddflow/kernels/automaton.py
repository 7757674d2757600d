"""Run state machines over the events of each key, with a table of transitions.

States and symbols are small numbers. A set of up to 64 states is a word with one bit for each state, so an event costs
one iteration for each state in its key's set. A transition to no state is allowed. A missing transition is an error.

Guarantees: before its next event, a key without a state enters the start state, whether the key is new, cleared or
empty. The walk decides beforehand which events are ignored or clear the state, so the result does not depend on how
events are divided into steps.
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Narrow2d, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.fold import SKIP, TAKE, EventsByKey

NOTHING, REFUSED = -1, -2
"""Values in place of a state: the key has no state; the transition is missing."""


@kernel
def run_single_state(
    walked: EventsByKey, action: Flags, symbols: Narrow, table: Narrow2d, held: Narrow, start: int, out: Narrow
) -> tuple[int, int]:
    """Run a machine that has at most one state for each key.

    Input: walked, action as for `fold.choose_cells`. symbols int32[n], by row. table int32[states, symbols]: a state,
    NOTHING or REFUSED. held int32[g], a state or NOTHING. start: a state.
    Output: out int32[m], by key and time. Returns the row and state of a missing transition, or -1 twice. O(p + m).

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
    """Run a machine that has a set of up to 64 states for each key.

    Takes the arguments of `run_single_state`, with sets: table uint64[states, symbols], the next states. refused
    uint64[symbols], the states without a transition. held uint64[g]. start. out uint64[m]. O(p * states in a set).

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
    """Find the number of the lowest set bit; 64 if no bit is set.

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
    """Unpack words into ascending lists of states, one after the other; return the number of states.

    Output: counts int64[n], codes with space for all. O(64 n).

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

"""How deep brackets stand within brackets in text on its way to a parser of JSON, and how long its lines are.

Invariant: the depth that is counted is the greatest that a parser could reach which begins at any line.  A closing
bracket without its opening one closes nothing, since that parser may have begun behind it; brackets within quotes do
not count, nor does a quote behind a backslash; and a line's end ends its quotes, since a parser stops there.  Whether
the text is JSON is not looked at.

>>> import numpy as np
>>> state = np.zeros(4, np.int64)
>>> beyond(np.frombuffer(b'{"a": "[[[["}\\n{"a": [[', np.uint8).copy(), 3, 100, state)
-1
>>> beyond(np.frombuffer(b"[", np.uint8).copy(), 3, 100, state), state.tolist()  # the text goes on
(0, [4, 0, 9, 1])
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Ints
from ddflow.kernels.compile import kernel

Letters = np.ndarray[Any, np.dtype[np.uint8]]
_END, _RETURN, _QUOTE, _BACKSLASH, _OPEN, _CLOSE, _BEGIN, _STOP = 10, 13, 34, 92, 91, 93, 123, 125


@kernel
def beyond(letters: Letters, deepest: int, longest: int, state: Ints) -> int:
    """The place of the first byte at which brackets are deeper, or a line longer, than allowed; -1 for none.

    letters: uint8[n], UTF-8.  state: int64[4], carried from text to text: the depth; 0 outside of quotes, 1 within, 2
    behind a backslash there; the bytes of the line so far; the lines that have ended.  O(n).

    >>> beyond(np.frombuffer(b"ab\\nabc", np.uint8).copy(), 9, 2, np.zeros(4, np.int64))
    5
    """
    depth, quoted, length, lines = state[0], state[1], state[2], state[3]
    found = -1
    for i in range(letters.size):
        letter = letters[i]
        if letter == _END:
            quoted, length, lines = 0, 0, lines + 1
            continue
        length += 1
        if letter == _RETURN:
            quoted = 0
        elif quoted == 2:
            quoted = 1
        elif quoted == 1:
            if letter == _QUOTE:
                quoted = 0
            elif letter == _BACKSLASH:
                quoted = 2
        elif letter == _QUOTE:
            quoted = 1
        elif letter in (_OPEN, _BEGIN):
            depth += 1
        elif letter in (_CLOSE, _STOP) and depth > 0:
            depth -= 1
        if depth > deepest or length > longest:
            found = i
            break
    state[0], state[1], state[2], state[3] = depth, quoted, length, lines
    return found

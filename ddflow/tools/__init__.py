"""Proof: what anybody can ask of a state without trusting it, or us.

    verify    its collections against the stateless fold of their logs, key by key
    fsck      every byte of every file, and whether they fit together
    inspect   what it consists of, from its manifest alone
    why       one key's story: what it held, and why not something else
    export    its collections as tables, range by range
    log       the events of a log, as a source takes them

Invariant: nothing here writes to a state.  What they tell is read from files that were verified, and from the log.
"""

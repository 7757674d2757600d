"""Tools: what the keeper of a state asks for.

    verify    its collections against the stateless fold of their logs, key by key
    fsck      every byte of every file, and whether they fit together
    inspect   what it consists of, from its manifest alone
    export    its collections as tables, range by range
    rollback  an older version, published again
    migrate   a log replayed into a new state of another plan
    estimate  what a state will take
    warmup    compiles every kernel by running small flows

Invariant: but for rollback and migrate nothing here writes to a state. What they say is read from files that were
verified, and from the log.
"""

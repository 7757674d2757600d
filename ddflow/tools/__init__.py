"""Tools for the states of flows.

    verify    compare its collections with the stateless fold of their logs, key by key
    fsck      check every byte of every file, and whether the files fit together
    inspect   describe its parts from its manifest alone
    export    read its collections as tables, range by range
    rollback  publish an older version again
    migrate   replay a log into a new state of another plan
    estimate  compute how much memory a state will take
    warmup    compile every kernel by running small flows

Only rollback and migrate write to a state.
"""

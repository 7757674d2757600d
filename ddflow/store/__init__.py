"""State on disk: the only room that touches it.

Invariant: a file appears under its final name whole, and is never truncated or overwritten, only unlinked; so whoever
has mapped one reads the same bytes for as long as he looks.  Today it keeps what an engine *spills*: bytes that had no
room in memory, worthless once the engine is gone, so nothing is synced and everything is deleted.

    claim    a folder held by one engine at a time, and the names of its files
    part     a file being written: Arrow's bytes to a descriptor, hashed on the way
    mapped   a batch that lives in a file
    folder   these put together: what an engine sees
"""

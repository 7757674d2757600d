"""State on disk, and wherever else it lives: the only room that touches it.

Invariant: a file is never changed once it is written, only unlinked; so whoever has mapped one reads the same bytes for
as long as he looks.  Two kinds of files live here.  What an engine *spills* had no room in memory and is worthless once
the engine is gone: nothing is synced, everything is deleted.  What *lasts* is named by a manifest, with its length and
its checksum: it is durable before the manifest is, and goes when no manifest that is kept names it.

    filing    what the rooms above ask of where batches go: a folder, or a vault

What spills:
    claim     a folder held by one engine at a time, and the names of its files
    part      a file being written: Arrow's bytes to a descriptor, hashed on the way
    mapped    a batch that lives in a file          table    a table written piece by piece
    folder    these put together: what an engine sees
    scratch   the folders to spill to that a local state brings

What lasts:
    blob      the protocol of a store: immutable blobs, numbered manifests, what failing means
    local     a store in a folder:    place, the folder looked at and put to the proof; site, what that shares with a
              folder of outputs; disk, the system calls
    s3        a store in a bucket:    bucket, the requests; cache, blobs by content on this machine
    memory    a store for tests       opening, a store by its address; address, what is none
    manifest  one version of a state  record, JSON read with suspicion
    vault     an engine's batches in a store: written once, verified when opened
    arrow_file, flatbuffer            Arrow files read without trusting who wrote them
    outputs   a folder of Parquet files, of one state:    showing, that what is committed is seen; leftovers, what
              failed commits left there
"""

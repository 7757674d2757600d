"""State on disk, in a bucket or in memory: no other folder reads or writes it.

Invariant: a file is never changed after it was written, only unlinked, so a reader that mapped it keeps its bytes. A
*scratch* file holds what did not fit in memory: it is never synced, and goes with its engine. A *lasting* file is named
by a manifest, with its length and checksum: it is durable before the manifest is, and goes after the last manifest that
names it.

    protocol        what a store does, and what its failures mean: folder/ (local, scratch), s3 (all clouds), memory
    object_store    buckets, and which clouds there are
    files/          batches as Arrow files in a store; the reader does not trust their bytes
    manifest        one version of a state; manifest_log: one after the other; inventory_text: the files that it names
    epochs, feeding the calls that a state remembers; backlog: rows that wait; fields: how records are read
    opening         a store by its address
"""

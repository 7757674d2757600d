"""Store states on disk, in a bucket or in memory: no other package reads or writes state files.

A file never changes after it was written. It is only unlinked, so a reader that mapped it keeps its bytes.

A *lasting* file is named by a manifest, with its length and checksum. It becomes durable before the manifest does, and
is deleted after the last manifest that names it.

A *scratch* file holds data that did not fit in memory. It is never synced, and is deleted with its engine.
"""

"""Store states on disk, in a bucket or in memory. No other package reads or writes state files.

A file never changes after it was written. Files are deleted only by unlinking, so a reader that has mapped a file can
still read it.

A manifest names each *lasting* file with its length and checksum. A lasting file becomes durable before a manifest that
lists it is published. A lasting file is deleted after the last manifest that names it.

A *scratch* file holds data that did not fit in memory. Scratch files are never synced, and are deleted when their
engine closes.
"""

"""Keep collections indexed by key, with one writer and many readers.

Operators use `arrangement.Arrangement` only. It combines an index in memory, batches of versions in memory or in files,
and merges that keep the number of runs small. `checkpoint` saves an arrangement with a commit and restores it.
"""

"""Keep collections indexed by key, with one writer and many readers.

Operators use only `arrangement.Arrangement`. An arrangement combines an index in memory, batches of versions in memory
or in files, and merges that keep the number of runs small. `checkpoint` saves an arrangement in a commit, and restores
an arrangement.
"""

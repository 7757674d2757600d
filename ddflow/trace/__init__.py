"""Arrangements: a collection kept indexed by key, one writer, many readers.

`batch` is the immutable unit, `run` what one step or merge wrote, `index` says where each key's version is, `spine`
keeps the runs few by merges (`merge`), `arrangement` is these together, and the only one that operators see.  `filed`
is a batch as a file, `spill` such a batch made to be searched, `inventory` an arrangement as plain values and files.
"""

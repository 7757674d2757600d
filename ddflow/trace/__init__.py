"""Arrangements: a collection kept indexed by key, one writer, many readers.

`batch` is the immutable unit and the runs of it that steps and merges write, `index` says where each key's version is,
`spine` keeps the runs few by merges (`merge`), `arrangement` is these together, and the only one that operators see.
`spill` is a batch as a file that is searched, `checkpoint` an arrangement as plain values and files.
"""

"""Arrangements: a collection kept indexed by key, one writer, many readers.

`batch` is the immutable unit, `index` says where each key's version is, `spine` keeps the batches few, `arrangement`
is the three together, and the only one that operators see.
"""

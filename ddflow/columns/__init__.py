"""Convert Arrow columns to the hashes, words and row references that kernels read, and kernel results back to Arrow.

This folder checks and casts the rows of a source, computes the identity of each row, and gathers rows by reference. The
folder keeps no state. README.md in this folder lists the files in reading order, and the invariants.
"""

"""Lineage: the history of a key, from the state and a log, and the input rows from which output rows were made.

`Reading.why` uses this package. A lineage request changes nothing. The README of this folder lists the files.
"""

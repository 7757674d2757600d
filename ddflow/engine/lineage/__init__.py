"""Lineage: the history of a key, from state and log, and the input rows behind the rows of an output.

`Reading.why` answers from here. A read of lineage changes nothing. The README of this folder lists the files.
"""

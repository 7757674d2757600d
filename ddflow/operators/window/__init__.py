"""Compute window functions: their calls (``calls``), frames (``frames``), states of places (``places``) and marks.

A call (``calls``) reads the places of a partition (``places``) in a frame (``frames``). What precedes
some rows of large partitions is kept (``marks``), so that a step need not read a partition from its start.
"""

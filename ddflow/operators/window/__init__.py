"""Compute window functions: their calls (``calls``), frames (``frames``), states of places (``places``) and marks.

A call (``calls``) reads the places of a partition (``places``) in a frame (``frames``). The values that large partitions
have before some of their rows are kept (``marks``), so that a step need not read a partition from its start.
"""

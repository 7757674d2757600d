"""Fold the values of each group into states, and compute aggregate results from these.

A part (``parts``) is one column of states, such as an exact sum. An aggregate (``results``) combines the states of its
parts, and is found by name in `results.FUNCTIONS`. Several aggregates may share a part.
"""

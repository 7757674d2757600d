"""Keep states of each group's values, and compute the results of aggregates from these states.

A part (``parts``) is a kind of state, such as an exact sum, and a column of the arrangement. An aggregate (``results``)
combines the states of its parts. `results.FUNCTIONS` has the aggregates by name. Several aggregates can share a part.
"""

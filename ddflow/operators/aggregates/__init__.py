"""Aggregates: what is kept of a group's values, and the results that are made of it.

``parts`` has what is kept: a column of states each. ``results`` has what an aggregate is in terms of those, by name in
`results.FUNCTIONS`. Several aggregates may share a part.
"""

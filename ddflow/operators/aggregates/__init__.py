"""Aggregates: what is kept of a group's values, and the results that are made of it.

``parts`` has what is kept: a column of states each. ``results`` has what an aggregate is in terms of those. An aggregate
that is asked for is named in `results.FUNCTIONS`; several may share a part.
"""

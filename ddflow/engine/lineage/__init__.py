"""Lineage: the history of a key, and the rows of the inputs behind a row of an output."""

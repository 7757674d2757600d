"""Verbs of a collection, one file for each family."""

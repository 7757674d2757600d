"""Iceberg: a table of a catalog as a sink."""

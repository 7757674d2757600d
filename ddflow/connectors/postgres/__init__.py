"""Postgres: tables and logical replication as a source, and a table as a sink."""

"""Delta Lake: a table as a source of changes and as a sink."""

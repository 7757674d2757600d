"""Read Postgres tables by logical replication, and write an output to a table."""

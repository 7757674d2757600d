"""Read the changes of a Delta Lake table, and write an output to a table."""

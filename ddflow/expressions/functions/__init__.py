"""Functions of SQL: a family a file, and the catalog that finds them by name."""

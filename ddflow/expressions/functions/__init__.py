"""SQL functions: one file for each family, and the catalog that finds them by name."""

"""A folder of outputs: each committed epoch's updates as Parquet, for others to read while ddflow goes on."""

"""One step of a plan, wherever it runs: in an engine, in a partition, in a snapshot that reads."""

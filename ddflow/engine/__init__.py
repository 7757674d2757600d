"""A dataflow with calls, times, readers and commits around it."""

"""Arrow columns as rows, hashes and words: what kernels work on, and what comes back as Arrow.  No state."""

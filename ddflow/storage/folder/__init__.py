"""A store in a folder of this machine: where it is, its system calls, its blobs and its lock."""

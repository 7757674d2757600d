"""Store a state in a local folder: folder checks, system calls, blobs and the lock of a scratch folder."""

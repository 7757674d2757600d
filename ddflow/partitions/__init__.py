"""Process a state that is split into partitions. Many tasks compute an epoch, and one driver commits it.

Each partition covers an equal range of identities. A *stage* is one pass over all partitions. An epoch has these steps:

    commit: begin      the driver fixes the epoch start: manifest and epoch    ``epoch_start``
    partitioner        rows become chunks, each for one partition              ``chunks``
    step               a task computes one partition of one stage              ``stages``
    receipt            the task reports its files and message summaries        ``messages``
    commit: finish     the driver checks one receipt a task and publishes

``rewrite`` makes another version of a state, with other partitions (``rescale``) or another plan (``evolve``). All code
of this folder runs in one process without Spark. ``spark_bridge`` runs the tasks on Spark.
"""

"""Partitions: one state, cut by identity, that many tasks work at and one driver commits; no Spark in it.

A partition is one of P equal ranges of identities; a *stage* is one pass over all of them.  The journey of an epoch:

    commit: begin      the driver fixes an epoch start: manifest and epoch     ``epoch_start``
    partitioner        rows become chunks, each of one partition
    chunks             a task's chunks, in the order of arrival
    step               one partition of one stage takes them in, writes files   ``stages``
    receipt            what it wrote, and what messages said of themselves      ``messages``
    commit: finish     one receipt a part; files looked at; published; or nothing has happened

A run without a state takes the same way from an empty start, and writes nothing (``step.compute_stage``). A ``rewrite``
makes another version of a state, of other partitions or another plan, by a ``rewrite_task`` for each partition
(``rescale``, ``evolve``). All of it runs in one process, too, which is how its laws are tested; ``spark_bridge`` runs
it on Spark.
"""

"""Partitions: one state, cut by identity, that many tasks work at and one driver commits; no Spark in it.

A partition is one of P equal ranges of identities; a *level* is one pass over all of them.  The journey of an epoch:

    coordinator.begin      the driver fixes a base: manifest, epoch, partitions, frontier          ``base``
    router                 rows become chunks, each of one partition                               ``packing``
    spool                  a task's chunks, in the order of arrival
    part                   one partition of one level takes them in, and writes files              ``circuit``, ``cut``
    receipt                what it wrote
    coordinator.finish     one receipt a part; files looked at; published; or nothing has happened

All of it runs in one process, too, which is how its laws are tested; ``spark_bridge`` runs it on Spark.
"""

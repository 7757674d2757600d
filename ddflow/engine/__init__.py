"""Engine code around a dataflow: calls, times, commits, recovery, reads, lineage, and runs with sources and sinks.

`ddflow.storage` writes the manifests and files of durable state. The README of this folder lists the files.
"""

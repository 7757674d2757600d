"""The engine around a dataflow: calls, times, commits, recovery, reads, lineage, and runs of sources and sinks.

Durable state lives in a store; `ddflow.storage` has its manifests and files. The README of this folder lists the files.
"""

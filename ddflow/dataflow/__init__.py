"""Compute one step of a plan: rows become events, events become updates, and operators compute the outputs.

Engines, partitions on Spark and snapshots share this code. The README of this folder lists its files and invariants.
"""

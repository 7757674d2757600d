"""Runs: read sources, commit epochs together with the positions of the sources, and deliver the epochs to sinks.

`Engine.run` and `Engine.sync` use this package. The README of this folder lists its files and invariants.
"""

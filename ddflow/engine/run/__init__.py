"""Runs: read sources, commit epochs together with the positions of the sources, and deliver them to sinks.

`Engine.run` and `Engine.sync` start here. The README of this folder lists the files and their invariants.
"""

"""Reads of an engine or a snapshot: contents, history, readers that follow a collection, and live views.

A read never changes the state, and runs on any thread while the writer continues. The README of this folder lists the
files and invariants.
"""

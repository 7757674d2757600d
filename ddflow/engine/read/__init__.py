"""Reads of an engine or a snapshot: contents, history, readers that follow a collection, and live views.

A read never changes the state, and runs beside the writer. The README of this folder lists the files and invariants.
"""

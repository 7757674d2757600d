"""Reads of an open engine or a snapshot: contents, history, readers and live views."""

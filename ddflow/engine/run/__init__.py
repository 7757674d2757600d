"""Runs: sources read, epochs committed and sinks kept up to date until a run is stopped."""

"""Specs of inputs, and their bindings to schemas."""

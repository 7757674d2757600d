"""The version of ddflow, in one place."""

__version__ = "0.1.0"

"""The verbs of a collection, a family a file."""

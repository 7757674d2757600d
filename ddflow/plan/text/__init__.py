"""A plan written down: as JSON, as text and as a picture."""

"""Write plans as JSON, as text and as SVG, and read them back from JSON."""

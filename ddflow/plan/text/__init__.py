"""Write plans as JSON, text or SVG, and read plans from JSON."""

"""The inputs of a plan: their specs, and specs joined with schemas."""

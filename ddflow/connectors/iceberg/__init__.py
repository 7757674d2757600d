"""Write an output to an Iceberg table of a catalog."""

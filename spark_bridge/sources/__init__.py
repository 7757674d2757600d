"""Data sources for Spark: states, batch and stream, and topics of Kafka."""

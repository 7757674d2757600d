"""Spark data sources for states, as a batch or a stream, and for Kafka topics."""

"""Kafka: the messages of a topic as a source, and a topic as a sink."""

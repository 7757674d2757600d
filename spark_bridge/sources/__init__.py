"""Spark data sources that read states and Kafka topics, as a batch or as a stream."""

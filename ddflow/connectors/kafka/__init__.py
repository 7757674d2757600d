"""Read the messages of a Kafka topic, and write an output to a topic."""

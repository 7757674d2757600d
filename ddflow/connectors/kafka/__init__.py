"""Read the messages of a Kafka topic, and write an output to one."""

"""Looking at what there is: a stream, a segment, a message, or one block and the Kafka records that it came from."""

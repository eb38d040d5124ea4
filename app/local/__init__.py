"""A Kafka on this machine, without installing one, and the directory in which one local TokenMill keeps everything."""

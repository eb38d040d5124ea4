"""The mill: from raw partitions to messages and dead letters on Kafka.

`app` wires a worker; `raw_partition` is the life of one partition, with the commit protocol; `publisher` is what is
sent; `recipes` says how a topic is milled; `skip_list` has the records that people leave out; `topic_changes` watches
the topics meanwhile, and `era_closing` closes eras.
"""

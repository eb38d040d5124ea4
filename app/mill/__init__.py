"""The mill: from raw partitions to messages and dead letters on Kafka.

`app` wires a worker; `raw_partition` is the life of one partition, with the commit protocol; `publisher` is what is
sent; `recipes` says how a topic is milled; `topic_changes` watches the topics meanwhile, and has the records that
people leave out; `inquiry` asks about duplicates, and `era_closing` closes eras.
"""

"""One raw partition on a mill worker: from where its chains continue to messages and dead letters on Kafka.

`partition` has its life, from the resume to the revocation; `recipes` says how its topic is milled, `tail` where its
chains continue, `growing` makes room for those of new partitions. `publisher` is what is sent,
`skip_list` and `suspects` the records that hang or kill.
"""

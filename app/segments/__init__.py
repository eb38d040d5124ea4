"""The segment worker: from token partitions to blocks that are durable in a store.

`app` wires a worker; `token_partition` is the life of one partition, and `following` finds where it begins and goes on.
`era_bringing` stores eras. `mirror` does the same without a group.
"""

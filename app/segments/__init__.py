"""One token partition on a segment worker: from the lock on its directory to blocks that are durable in the store.

`partition` has its life, from the resume to the revocation; `opening` waits for directory and disk, `block_search`
finds a block on the topic by its number, and `late_start` says where a new store begins if the first ones are gone.
"""

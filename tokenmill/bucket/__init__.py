"""Reading buckets: objects, the heads that say what counts, segments fetched and checked, a cache of what comes next.

A bucket is a store whose files are objects (docs/format.md, "In a bucket"). `objects` creates, reads and lists objects,
and refuses what cannot keep the promises. `head_log` has the rules of the numbered heads. `fetching` gets segments out,
checked, and `cache` keeps on this host those of the eras that are read.
"""

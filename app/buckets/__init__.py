"""Filling buckets, and stores out of them (docs/format.md, "In a bucket").

`stream` cuts a store's blocks into the bucket's segments, and `upload` brings them there. `mirroring` makes a full
store of a bucket. `tokenmill.bucket` has what readers need of it.
"""

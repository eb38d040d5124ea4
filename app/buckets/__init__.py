"""Filling buckets, and stores out of them (docs/format.md, "In a bucket").

`upload` cuts a store's blocks into the bucket's segments, and brings them there. `mirroring` makes a full store of a
bucket. `tokenmill.bucket` has what readers need of it.
"""

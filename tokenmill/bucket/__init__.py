"""Reading buckets, stores whose files are objects (docs/format.md, "In a bucket")."""

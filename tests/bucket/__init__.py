"""Buckets on real servers: moto and those that `make test-bucket` builds are of S3's kind, and one is of Google's."""

"""Buckets on servers of S3's kind: moto, and gofakes3 and versitygw, which `make test-bucket` builds and starts."""

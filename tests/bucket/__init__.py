"""Buckets on servers of S3's kind, which `make test-bucket` builds and starts: gofakes3 and versitygw."""

"""Uploading to buckets, and what reads them."""

"""Tests of `tokenmill.sources`."""

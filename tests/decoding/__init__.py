"""Tests of `tokenmill.decoding`."""

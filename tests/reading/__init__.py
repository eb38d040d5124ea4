"""Tests of `tokenmill.reading`."""

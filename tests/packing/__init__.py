"""Tests of `tokenmill.packing`."""

"""Tests of `tokenmill.engines`."""

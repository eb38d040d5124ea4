"""Tests of `tokenmill.steps`."""

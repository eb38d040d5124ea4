"""Tests of `tokenmill.stages`."""

"""Tests of `tokenmill.eras`."""

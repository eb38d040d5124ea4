"""Tests of `tokenmill.app.sources`."""

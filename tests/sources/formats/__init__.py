"""Tests of `tokenmill.sources.formats`."""

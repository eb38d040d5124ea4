"""Tests of `tokenmill.app.sources.formats`."""

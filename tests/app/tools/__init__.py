"""Tests of `tokenmill.app.tools`."""

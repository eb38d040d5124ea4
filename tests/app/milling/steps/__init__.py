"""Tests of `tokenmill.app.milling.steps`."""

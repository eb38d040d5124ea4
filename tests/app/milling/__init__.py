"""Tests of `tokenmill.app.milling`."""

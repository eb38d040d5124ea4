"""Tests of `tokenmill.app.milling.decoding`."""

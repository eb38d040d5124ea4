"""Tests of `tokenmill.app.milling.packing`."""

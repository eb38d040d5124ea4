"""Tests of `tokenmill.milling.packing`."""

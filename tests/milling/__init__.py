"""Tests of `tokenmill.milling`."""

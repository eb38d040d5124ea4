"""Tests of `tokenmill.wire`."""

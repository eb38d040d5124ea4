"""Tests of `tokenmill.stages.decoding`."""

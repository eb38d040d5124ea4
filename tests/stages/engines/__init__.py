"""Tests of `tokenmill.stages.engines`."""

"""Tests of `tokenmill.stages.steps`."""

"""Tests of `tokenmill.funnel`."""

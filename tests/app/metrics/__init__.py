"""Tests of tokenmill.app.metrics."""

"""Tests of tokenmill.app.segments."""

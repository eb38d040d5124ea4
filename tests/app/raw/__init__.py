"""Tests of tokenmill.app.raw."""

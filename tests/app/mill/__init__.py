"""Tests of tokenmill.app.mill."""

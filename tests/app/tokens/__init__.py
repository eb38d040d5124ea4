"""Tests of tokenmill.app.tokens."""

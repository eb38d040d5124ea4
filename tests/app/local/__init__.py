"""Tests of tokenmill.app.local."""

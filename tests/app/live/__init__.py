"""Tests of tokenmill.app.live."""

"""Tests of tokenmill.app.local.live."""

"""Tests of `tokenmill.app.funnel`."""

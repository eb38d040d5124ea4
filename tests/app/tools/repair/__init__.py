"""Tests of `tokenmill.app.tools.repair`."""

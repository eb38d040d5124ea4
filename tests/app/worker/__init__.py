"""Tests of `tokenmill.app.worker`."""

"""Tests of tokenmill.app.clients."""

"""Tests of tokenmill.app.verify, module by module."""

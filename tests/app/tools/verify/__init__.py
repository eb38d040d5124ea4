"""Tests of tokenmill.app.tools.verify, module by module."""

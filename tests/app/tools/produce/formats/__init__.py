"""Tests of `tokenmill.app.tools.produce.formats`."""

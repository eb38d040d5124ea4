"""Tests of tokenmill.app.telemetry."""

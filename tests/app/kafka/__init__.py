"""Tests of tokenmill.app.kafka."""

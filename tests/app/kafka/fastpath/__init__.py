"""Tests of `tokenmill.app.kafka.fastpath`."""

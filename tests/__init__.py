"""Tests: of pure code by property, of all the rest against a real Kafka broker."""

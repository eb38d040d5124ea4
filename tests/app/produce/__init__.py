"""Tests of tokenmill.app.produce: what people have, into a raw topic, once."""

"""Tests of tokenmill.app.tools.produce: what people have, into a raw topic, once."""

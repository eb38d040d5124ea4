"""TokenMill: raw text in Kafka becomes training-ready token blocks, once each, in an order that every trainer agrees on."""

__version__ = "0.1.0"

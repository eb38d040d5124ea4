"""TokenMill: raw text in Kafka becomes training-ready token blocks, once each, in one order for every trainer."""

__version__ = "0.1.0"

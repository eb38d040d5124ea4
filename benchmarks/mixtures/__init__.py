"""Loaders that mix streams by weight, each in processes of its own: ``make bench-mixture``."""

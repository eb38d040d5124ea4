"""Mirrors on a real broker."""

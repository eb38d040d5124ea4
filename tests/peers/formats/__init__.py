"""Exports, read by the libraries whose formats they are."""

"""Repairing a store from the token topic or from another store."""

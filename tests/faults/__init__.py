"""Faults on a real broker and real processes; what came of it is held against the reference."""

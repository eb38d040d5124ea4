"""Writes the pages of docs/ that are made from the code (`make docs`); not part of what is installed."""

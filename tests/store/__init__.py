"""Tests of the segment store."""

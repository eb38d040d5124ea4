"""Tests of the formats that produce reads."""

"""Tests of the sequence of samples."""

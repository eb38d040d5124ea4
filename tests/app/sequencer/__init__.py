"""Tests of the sequencer."""

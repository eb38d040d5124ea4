"""Tests of the benchmarks: that they run, and that they count right."""

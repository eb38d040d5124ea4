"""Tests of packing files into a store."""

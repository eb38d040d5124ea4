"""Tests of what filters of text quality share, and of their kernels."""

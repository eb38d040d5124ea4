"""Tests of the pages in docs/: what they say holds, and their commands run."""

"""Tests of exports: read back by the format's own library, token for token, after kills as well."""

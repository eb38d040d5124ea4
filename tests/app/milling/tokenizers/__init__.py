"""Tests of `tokenmill.app.milling.tokenizers`."""

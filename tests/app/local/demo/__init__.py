"""Tests of tokenmill.app.local.demo's parts; tests/app/local/test_demo.py has the whole."""

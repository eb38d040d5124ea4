"""Tests of tokenmill.app.demo's parts; tests/app/test_demo.py has the whole."""

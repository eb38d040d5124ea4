"""Tests of tokenmill.app.supervisor's pure parts; tests/app/test_serve.py has those with real workers."""

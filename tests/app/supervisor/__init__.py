"""Tests of tokenmill.app.supervisor's pure parts; tests/app/test_supervisor.py has those with real workers."""

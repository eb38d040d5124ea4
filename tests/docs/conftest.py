"""Fixtures of the service's tests that tests of pages use, too."""

from tests.app.conftest import logging_restored

__all__ = ["logging_restored"]

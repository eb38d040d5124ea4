"""The simulations are fault tests, and show for themselves what those do."""

from tests.faults.conftest import pytest_runtest_makereport, rng, trial

__all__ = ["pytest_runtest_makereport", "rng", "trial"]

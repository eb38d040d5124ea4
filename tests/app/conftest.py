"""What the tests of the service share."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Leave logging as it was, for tests of what sets it up."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()

"""What the tests of the training side share."""

import pytest

from tests.consumers.scenes import era_store
from tokenmill.store import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with all eras and the end marker, which tests only read."""
    return era_store(tmp_path_factory.mktemp("store"))

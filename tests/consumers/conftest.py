"""What the tests of the training side share."""

import pytest

from tests.consumers.scenes import era_store
from tokenmill.store import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return era_store(tmp_path_factory.mktemp("store"))

"""The service on the newest Faust and aiokafka that there are, so that an upgrade is a decision (`make test-newest`).

Fails where the store does not become what it must.
"""

import sys
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.milled import SPLITS, records
from tests.service import Service, send, service_settings, stored_blocks
from tokenmill.app.local.broker import Broker

FOLDER = Path(sys.prefix) / "newest"
"""Where `make test-newest` puts the libraries."""


@pytest.mark.newest
def test_the_service_works_with_the_newest_libraries(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    assert (FOLDER / "aiokafka").is_dir(), "run `make test-newest`, which installs them"
    settings = service_settings(broker, topic(2), tmp_path, splits=SPLITS)
    sent = records()
    with Service(settings, tmp_path, PYTHONPATH=str(FOLDER)) as service:
        service.entry = "tests.app.newest_libraries"
        (mill,) = service.mill()
        service.segment()
        send(settings, sent[:120])
        service.wait_until_complete()
        mill.stop()
        service.mill()
        send(settings, sent[120:])
        expected = service.wait_until_complete()
        print(mill.log.partition("\n")[0])  # noqa: T201 - which versions it was
        assert all(str(FOLDER) in worker.log.partition("\n")[0] for worker in service.workers)
    assert stored_blocks(settings, expected) == {chain: len(blocks) for chain, blocks in expected.items()}

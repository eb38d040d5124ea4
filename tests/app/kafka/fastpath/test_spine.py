"""From the raw topic to the store with the fast path and without it: the same blocks, byte for byte."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.app.stock_aiokafka import LINE
from tests.conftest import TopicFactory
from tests.milled import SPLITS, records
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.store import open_partition

LARGE = [Raw(b"grain " * 50_000, partition) for partition in (0, 1)]
"""Their messages are large enough to be sent, received and unpacked without being copied."""

Block = tuple[bytes, Sequence[object]]
"""Tokens, and the documents of which they are."""


def stored(settings: Settings) -> dict[tuple[str, int], list[Block]]:
    """Return the blocks in the store, by split and partition."""
    readers = {(s.split, n): open_partition(settings.store, s.name, n) for s in settings.streams() for n in (0, 1)}
    return {
        chain: [(reader.read(number).tobytes(), reader.documents(number)) for number in range(reader.blocks)]
        for chain, reader in readers.items()
    }


@pytest.mark.needs("minutes")
def test_the_service_stores_the_same_with_the_fast_path_and_without(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Each worker says in one log line that it goes without; nothing else differs, and both are right."""
    raw_topic = topic(2)
    found = []
    for number, entry in enumerate(("tokenmill.app.cli", "tests.app.stock_aiokafka")):
        directory = tmp_path / entry
        directory.mkdir()
        own = {"stream_suffix": f"-{number}", "group": f"{raw_topic}-{number}", "message_bytes": 200_000}
        settings = service_settings(broker, raw_topic, directory, splits=SPLITS, **own)
        if not number:
            send(settings, [*records(), *LARGE])
        with Service(settings, directory) as service:
            service.entry = entry
            workers = [*service.mill(), service.segment()]
            expected = service.wait_until_complete()
            assert [worker.log.count(LINE) for worker in workers] == [number, number]
        found.append(stored(settings))
        right = {
            (stream.split, n): [block.tokens for block in expected[stream.name, n]]
            for stream in settings.streams()
            for n in (0, 1)
        }
        assert {chain: [tokens for tokens, _ in blocks] for chain, blocks in found[-1].items()} == right
    assert found[0] == found[1]
    assert sum(map(len, found[0].values())) > 1000

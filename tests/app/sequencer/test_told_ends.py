"""A sequencer that begins, and a broker that says where the signature log ends."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.types import TP

from tests.app.tools.verify.test_domain_check import Written, write_domain
from tests.conftest import TopicFactory
from tests.service import in_own_loop
from tokenmill.app.kafka.clients import offsets
from tokenmill.app.local.broker import Broker
from tokenmill.app.sequencer import app as sequencer_app
from tokenmill.app.sequencer import rebuilding
from tokenmill.app.sequencer.app import SignaturePartition


def resumed(written: Written, monkeypatch: pytest.MonkeyPatch, times: int) -> SignaturePartition:
    """Return what resumed while a broker said so many times that the log ends before what verdicts are out on."""
    signatures, told = written.domain.signatures_topic, list[int]()

    async def too_low(
        client: AIOKafkaConsumer, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        found = await offsets(client, partitions)
        if partitions == [TopicPartition(signatures, 0)] and len(told) < times:
            told.append(1)
            return {partition: (first, end - 9) for partition, (first, end) in found.items()}
        return found

    async def nothing(*_: object) -> int:
        return 0

    monkeypatch.setattr(rebuilding, "offsets", too_low)
    monkeypatch.setattr(sequencer_app, "AGAIN_SECONDS", 0.01)
    app: Any = SimpleNamespace(
        send_record=nothing,
        leader=lambda _: None,
        know=nothing,
        start_partition=nothing,
        set_durable=lambda _, __: None,
    )
    partition = SignaturePartition(TP(signatures, 0), written.settings, written.domain, app)
    in_own_loop(partition.resume)
    return partition


@pytest.mark.needs("minutes")
def test_an_end_that_is_told_too_low_for_a_moment_halts_nothing(
    broker: Broker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked again, for a while; a log that stays so has lost messages."""
    written = write_domain(broker, topic, tmp_path)
    partition = resumed(written, monkeypatch, 2)
    assert partition.halted is None
    assert partition.position == 1 + max(found[-1].signature for found in written.verdicts.values())
    monkeypatch.setattr(sequencer_app, "DOUBT_SECONDS", 0.05)
    assert "lost messages of which verdicts are out" in (resumed(written, monkeypatch, 10**6).halted or "")

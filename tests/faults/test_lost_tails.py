"""A broker loses the ends of its logs, as after a power loss: they are cut in its files, and other text comes."""

import os
import struct
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import topics_on
from tests.faults.feeding import flush_all
from tests.faults.oracle import (
    assert_store_equal,
    assert_topic_equal,
    expected_chains,
    read_topic,
    store_is_complete,
)
from tests.faults.test_lost_logs import halted
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, in_own_loop, send, service_settings
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker

TEXT: Final = b"a text of some length, so that a few of them fill a block; " * 4
OTHER: Final = b"another text, which nobody has seen at these offsets before; " * 4
BATCHES, RECORDS = 6, 10
BATCH_HEADER: Final = struct.Struct(">qi")
"""Base offset and length of what follows: how a record batch begins (Kafka's record batch format, version 2)."""


def cut(broker: Broker, topic: str, keep: int) -> int:
    """Keep the first record batches of a partition in the files of a broker that is down; return how many are lost.

    A negative number keeps all but so many.
    """
    directory = broker.directory / "data" / f"{topic}-0"
    (log,) = directory.glob("*.log")
    data = log.read_bytes()
    ends = []
    at = 0
    while at < len(data) and (length := BATCH_HEADER.unpack_from(data, at)[1]):
        at += BATCH_HEADER.size + length
        ends.append(at)
    keep = keep if keep > 0 else len(ends) + keep
    os.truncate(log, ends[keep - 1])
    for kind in ("*.index", "*.timeindex", "*.snapshot"):  # they are made again from the log
        for path in directory.glob(kind):
            path.unlink()
    return len(ends) - keep


@pytest.mark.fault("logs-rewritten")
@pytest.mark.needs("minutes")
def test_lost_tails_heal_or_halt_and_never_mix(tmp_path: Path, trial: Trial) -> None:
    """Tokens lost: written again. Source lost: halted. Both lost, and other text there: a store that knows more halts.

    What a new store makes of what stands now is the reference's answer for it.
    """
    with Broker(tmp_path / "broker") as broker:
        create = topics_on(broker, "tails")
        tokens_lost, source_lost, both_lost = create(), create(), create()
        settings = service_settings(broker, tokens_lost, tmp_path, session_timeout=2.0, splits={"train": 1000})
        settings = settings.model_copy(update={"raw_topics": (tokens_lost, source_lost, both_lost)})
        in_own_loop(lambda: ensure_topics(settings))
        for _ in range(BATCHES):
            for name in settings.raw_topics:
                send(settings, [Raw(TEXT)] * RECORDS, name)
        with working(settings) as service:
            service.wait_until_complete()
            service.stop()
        known = {chain.stream.raw_topic: chain for chain in expected_chains(settings)}

        broker.kill()
        for name in (tokens_lost, both_lost):
            trial.fired("token messages lost", cut(broker, f"tokens.{name}.train", 3))
        for name in (source_lost, both_lost):
            trial.fired("raw batches lost", cut(broker, name, 3))
        broker.start()
        kept = {name: len(read_topic(settings, name, 0)) for name in settings.raw_topics}
        assert kept[source_lost] == kept[both_lost] < kept[tokens_lost] == BATCHES * RECORDS
        send(settings, [Raw(OTHER)] * BATCHES * RECORDS, both_lost)
        send(settings, [Raw(TEXT)] * RECORDS, tokens_lost)

        with working(settings) as service:
            mill, segment = service.workers
            service.wait_until(lambda: bool(halted(mill, f"{source_lost}/0")))
            service.wait_until(lambda: bool(halted(segment, f"tokens.{both_lost}.train/0")))
            chains = {chain.stream.raw_topic: chain for chain in expected_chains(settings)}
            service.wait_until(lambda: store_is_complete(settings, [chains[tokens_lost]]))
            assert f"{source_lost}[0] ends at offset" in halted(mill, f"{source_lost}/0")
            assert "lost its tail and other text came" in halted(segment, f"tokens.{both_lost}.train/0")
            flush_all(settings)
            chains = {chain.stream.raw_topic: chain for chain in expected_chains(settings)}
            service.wait_until(lambda: store_is_complete(settings, [chains[tokens_lost]]))
            assert_store_equal(settings, chains[tokens_lost])
            assert_topic_equal(settings, chains[tokens_lost])
            for name in (source_lost, both_lost):
                assert_store_equal(settings, known[name])  # what was committed before stays as it was
        new = settings.model_copy(update={"store": tmp_path / "new", "raw_topics": (tokens_lost, both_lost)})
        with working(new) as service:
            service.wait_until(lambda: store_is_complete(new, [chains[tokens_lost], chains[both_lost]]))
            for name in (tokens_lost, both_lost):
                assert_store_equal(new, chains[name])
        trial.held("exact", "complete", "topic", "loud")

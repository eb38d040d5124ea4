"""A split so thin that its open block is older than all that raw and token topic retain: carries hold it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from tests.conftest import topics_on
from tests.faults.alive import document_for
from tests.faults.configuring import configure
from tests.faults.feeding import flush_all
from tests.faults.oracle import Kept, assert_store_equal, expected_chains, read_topic, store_is_complete
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, Worker, in_own_loop, send, service_settings
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

WORDS = "words of a split so thin; "
RETENTION_MS = "6000"


def held(settings: Settings, topic: str) -> tuple[int, int]:
    """Return the first offset of a topic's only partition, and its end."""
    partition = TopicPartition(topic, 0)

    async def ask() -> tuple[int, int]:
        async with consumer(settings) as client:
            return (await offsets(client, [partition]))[partition]

    return in_own_loop(ask)


def carried(mill: Worker, raw_topic: str) -> set[int]:
    """Return the source offsets up to which the chains of a mill are published."""
    chains = mill.partitions.get(f"{raw_topic}/0", {}).get("chains", {})
    return {chain["offset"] for chain in chains.values()}


@pytest.mark.fault("thin-split", "source-retained")
@pytest.mark.needs("minutes")
def test_open_block_outlives_what_it_was_made_of(tmp_path: Path, trial: Trial) -> None:
    """Retention removes the record, and the first carries; a new worker continues the block from a later carry."""
    with Broker(tmp_path / "broker", settings={"log.retention.check.interval.ms": "300"}) as broker:
        raw_topic = topics_on(broker, "thin")(1)
        splits = {"train": 998, "thin": 1, "empty": 1}
        settings = service_settings(broker, raw_topic, tmp_path, session_timeout=2.0, carry_seconds=0.5, splits=splits)
        thin = [stream.tokens_topic for stream in settings.streams() if stream.split != "train"]
        for topic in thin:
            configure(settings, topic, "segment.ms", "500")
            configure(settings, topic, "retention.ms", RETENTION_MS)  # the mill learns it at its start

        def feed(split: str, text: str, times: int = 1) -> None:
            send(settings, [Raw(document_for(settings, raw_topic, split, text))] * times)

        def gone(topics: list[str], wanted: Callable[[int, int], bool]) -> Callable[[], bool]:
            return lambda: all(wanted(*held(settings, topic)) for topic in topics)

        feed("thin", WORDS)
        feed("train", "what most of the text is; ", 200)
        before = read_topic(settings, raw_topic, 0)
        with working(settings) as service:
            mill, _ = service.workers
            service.wait_until(lambda: carried(mill, raw_topic) == {len(before)})
            configure(settings, raw_topic, "retention.ms", "1")
            service.wait_until(gone([raw_topic], lambda first, end: first == end))
            trial.fired("records of the open block removed", len(before))
            for _ in range(trial.rounds(1, 5)):
                first = held(settings, thin[0])[0]
                service.wait_until(gone(thin, lambda now, end: first < now < end))  # noqa: B023 - called at once
                trial.fired("carries removed, and written again", len(thin))
            for topic in thin:  # the next mill may take longer to start than that
                configure(settings, topic, "retention.ms", "-1")
            service.wait_until(gone(thin, lambda now, end: now < end))
            mill.kill()
            (mill,) = service.mill()
            service.wait_until(lambda: f"{raw_topic}/0" in mill.partitions)
            configure(settings, raw_topic, "retention.ms", "-1")
            feed("thin", WORDS, 10)
            feed("empty", "the first words of a stream; ", 10)
            flush_all(settings)
            after = [kept for kept in read_topic(settings, raw_topic, 0) if kept.offset > before[-1].offset]
            chains = expected_chains(settings, {0: [*map(Kept._make, before), *after]})
            service.wait_until(lambda: store_is_complete(settings, chains))
            assert mill.running
            assert not mill.partitions[f"{raw_topic}/0"]["halted"]
        for chain in chains:
            assert chain.blocks
            assert_store_equal(settings, chain)
        trial.held("exact", "complete", "alive", blocks=sum(len(chain.blocks) for chain in chains))

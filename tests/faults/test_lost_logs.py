"""Logs that lose what was in them: a worker that cannot resume says why, skips nothing, and the others go on.

Open blocks are made again of the records that they refer to, are held by carries, or halt loudly.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TopicFactory, topics_on
from tests.faults import oracle
from tests.faults.altering import configure, cut, delete_records, recreate
from tests.faults.conftest import Configured
from tests.faults.feeding import TEXT, Feeder, flush_all
from tests.faults.serving import halted, working
from tests.faults.test_workers import BURST, kill_one
from tests.faults.trial import Trial
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.errors import TopicError
from tokenmill.wire.chain import roll
from tokenmill.wire.message import HEADER_NAME, Message, encode_header
from tokenmill.wire.pieces import split_references

ONE_SPLIT: dict[str, Any] = {"splits": {"train": 1000}, "session_timeout": 2.0}


@pytest.mark.fault("source-recreated")
def test_recreated_source_halts_its_partitions_and_no_other(
    configured: Configured, topic: TopicFactory, trial: Trial
) -> None:
    """Raw topics that are made anew, shorter and longer than before, are noticed; a third one is milled on."""
    shorter, longer = topic(), topic()
    settings = configured(**ONE_SPLIT)
    (other,) = settings.raw_topics
    settings = settings.model_copy(update={"raw_topics": (shorter, longer, other)})
    in_own_loop(lambda: ensure_topics(settings))
    for name in settings.raw_topics:
        send(settings, [Raw(TEXT * 4)] * 30, name)
    with working(settings) as service:
        service.wait_until_complete()
        before = {name: oracle.read_topic(settings, f"tokens.{name}.train", 0) for name in (shorter, longer)}
        recreate(settings, shorter, 1)
        recreate(settings, longer, 1)
        send(settings, [Raw(b"another text " * 9)] * 60, longer)
        send(settings, [Raw(TEXT)] * 30, other)

        def reasons() -> list[str]:
            revive(service)
            mill = next(worker for worker in service.workers if worker.role == "mill")
            return [halted(mill, f"{name}/0") for name in (shorter, longer)]

        service.wait_until(lambda: all(reasons()))
        ends, differs = reasons()
        chains = [chain for chain in oracle.expected_chains(settings) if chain.stream.raw_topic == other]
        service.wait_until(lambda: oracle.store_is_complete(settings, chains))
        oracle.assert_all_equal(settings, chains)
    advice = "the topic was deleted, recreated or rewritten; begin a new stream with stream_suffix"
    assert ends == f"{shorter}[0] ends at offset 0, the chain has passed 29: {advice}"
    noticed = ("no longer holds at offset 29 what the chain was made of", "ends at offset 0, the chain has passed 29")
    assert differs in {f"{longer}[0] {how}: {advice}" for how in noticed}  # the second one before there are new texts
    assert {name: oracle.read_topic(settings, f"tokens.{name}.train", 0) for name in before} == before
    trial.fired("raw topic recreated", 2)
    trial.held("loud", "exact", "complete")


def revive(service: Service) -> None:
    """Start workers anew, those as well that found a topic missing while it was being made again."""
    service.tend()
    for worker in list(service.workers):
        if worker.process.poll() == TopicError.exit_code:
            service.workers.remove(worker)
            service.mill() if worker.role == "mill" else service.segment()


@pytest.mark.fault("source-recreated")
def test_mill_ends_when_its_token_topic_loses_its_tail(configured: Configured, trial: Trial) -> None:
    """An acknowledgement below what was there before ends the mill; the next one writes all blocks again."""
    settings = configured(**ONE_SPLIT)
    tokens_topic = settings.streams()[0].tokens_topic
    send(settings, [Raw(TEXT * 4)] * 30)
    with working(settings) as service:
        mill, segment = service.workers
        service.wait_until_complete()
        segment.stop()
        recreate(settings, tokens_topic, 1)
        send(settings, [Raw(TEXT * 4)] * 30)
        service.wait_until(lambda: not mill.running or bool(oracle.read_topic(settings, tokens_topic, 0)))
        service.wait_until_ended(mill)
        assert mill.process.returncode == 75
        assert "it lost its tail" in (mill.beats.words or "")
        service.mill()
        service.segment()
        flush_all(settings)
        (chain,) = oracle.expected_chains(settings)
        service.wait_until(lambda: oracle.store_is_complete(settings, [chain]))
        oracle.assert_store_equal(settings, chain)
        service.wait_until(lambda: oracle.token_messages(settings, chain.stream)[-1].end == len(chain.blocks))
        stray, again, *_ = oracle.token_messages(settings, chain.stream)
        assert stray.first > again.first == 0
        oracle.assert_topic_equal(settings, chain, strays=1)
        trial.fired("token topic recreated")
        trial.held("exact", "complete", "topic", "loud")


@pytest.mark.fault("logs-rewritten")
@pytest.mark.needs("minutes")
def test_store_halts_where_the_token_topic_tells_another_story(configured: Configured, trial: Trial) -> None:
    """A token partition whose last message was replaced is refused by a store that has the first one's blocks."""
    settings = configured(2, **ONE_SPLIT)
    stream = settings.streams()[0]
    send(settings, [Raw(TEXT * 4, number % 2) for number in range(60)])
    with working(settings) as service:
        service.wait_until_complete()
        service.stop()
        logs = [oracle.token_messages(settings, stream, partition) for partition in range(2)]
        logs[0][-1] = forged(logs[0][-1])
        recreate(settings, stream.tokens_topic, 2)
        raws = [raw_of(message, partition) for partition, log in enumerate(logs) for message in log]
        send(settings, raws, stream.tokens_topic)
        segment = service.segment()
        service.mill()
        service.wait_until(lambda: bool(halted(segment, f"{stream.tokens_topic}/0")))
        assert "lost its tail and other text came" in halted(segment, f"{stream.tokens_topic}/0")
        send(settings, [Raw(TEXT * 4, 1)] * 30)
        there, here = oracle.expected_chains(settings)
        service.wait_until(lambda: oracle.store_is_complete(settings, [here]))
        oracle.assert_store_equal(settings, there)
        oracle.assert_store_equal(settings, here)
        trial.fired("token message forged")
        trial.held("loud", "exact", "complete")


def raw_of(message: Message, partition: int = 0) -> Raw:
    return Raw(bytes(message.tokens), partition, b"", [(HEADER_NAME, encode_header(message))])


def forged(message: Message) -> Message:
    """Return a message of the same place that is right in itself and holds other tokens."""
    tokens = bytes(byte ^ 1 for byte in bytes(message.tokens))
    return replace(message, tokens=tokens, after=roll(message.before, tokens, message.entries)[-1])


@pytest.mark.fault("source-retained")
def test_retention_past_the_cursor_halts_with_the_range(configured: Configured, trial: Trial) -> None:
    """Records that were removed before they were milled are named; up to the cursor, retention may remove all."""
    settings = configured(2, **ONE_SPLIT)
    (stream,), (raw_topic,) = settings.streams(), settings.raw_topics
    send(settings, [Raw(TEXT, number % 2) for number in range(40)])
    flush_all(settings)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until_complete()
        mill.stop()
        send(settings, [Raw(TEXT * 3, number % 2) for number in range(40)])
        cursors = [oracle.token_messages(settings, stream, partition)[-1].cursor for partition in range(2)]
        assert cursors[0].next_offset == 21
        delete_records(settings, raw_topic, 0, 30)
        delete_records(settings, raw_topic, 1, cursors[1].next_offset)
        before = oracle.read_topic(settings, stream.tokens_topic)
        (mill,) = service.mill()
        service.wait_until(lambda: bool(halted(mill, f"{raw_topic}/0")))
        service.wait_until(lambda: mill.partitions[f"{raw_topic}/1"]["position"] == 41)
        reason = halted(mill, f"{raw_topic}/0")
    assert "records 21 to 29 were removed before they were milled" in reason
    assert oracle.read_topic(settings, stream.tokens_topic) == before
    assert oracle.token_messages(settings, stream, 1)[-1].cursor.next_offset > 21
    trial.fired("records removed before they were milled", 9)
    trial.held("loud")


@pytest.mark.fault("logs-rewritten")
@pytest.mark.needs("minutes")
def test_lost_tails_heal_or_halt_and_never_mix(tmp_path: Path, trial: Trial) -> None:
    """Tokens lost: written again. Source lost: halted. Both lost, and other text there: a store that knows more halts.

    What a new store makes of what stands now is the reference's answer for it.
    """
    with Broker(tmp_path / "broker") as broker:
        create = topics_on(broker, "tails")
        tokens_lost, source_lost, both_lost = create(), create(), create()
        settings = service_settings(broker, tokens_lost, tmp_path, **ONE_SPLIT)
        settings = settings.model_copy(update={"raw_topics": (tokens_lost, source_lost, both_lost)})
        in_own_loop(lambda: ensure_topics(settings))
        for _ in range(6):
            for name in settings.raw_topics:
                send(settings, [Raw(TEXT * 4)] * 10, name)
        with working(settings) as service:
            service.wait_until_complete()
            service.stop()
        known = {chain.stream.raw_topic: chain for chain in oracle.expected_chains(settings)}

        broker.kill()
        for name in (tokens_lost, both_lost):
            trial.fired("token messages lost", cut(broker, f"tokens.{name}.train", 3))
        for name in (source_lost, both_lost):
            trial.fired("raw batches lost", cut(broker, name, 3))
        broker.start()
        kept = {name: len(oracle.read_topic(settings, name, 0)) for name in settings.raw_topics}
        assert kept[source_lost] == kept[both_lost] < kept[tokens_lost] == 60
        send(settings, [Raw(b"another text, which nobody has seen at these offsets before; " * 4)] * 60, both_lost)
        send(settings, [Raw(TEXT * 4)] * 10, tokens_lost)

        with working(settings) as service:
            mill, segment = service.workers
            service.wait_until(lambda: bool(halted(mill, f"{source_lost}/0")))
            service.wait_until(lambda: bool(halted(segment, f"tokens.{both_lost}.train/0")))
            assert f"{source_lost}[0] ends at offset" in halted(mill, f"{source_lost}/0")
            assert "lost its tail and other text came" in halted(segment, f"tokens.{both_lost}.train/0")
            flush_all(settings)
            chains = {chain.stream.raw_topic: chain for chain in oracle.expected_chains(settings)}
            service.wait_until(lambda: oracle.store_is_complete(settings, [chains[tokens_lost]]))
            oracle.assert_store_equal(settings, chains[tokens_lost])
            oracle.assert_topic_equal(settings, chains[tokens_lost])
            for name in (source_lost, both_lost):
                oracle.assert_store_equal(settings, known[name])  # what was committed before stays as it was
        new = settings.model_copy(update={"store": tmp_path / "new", "raw_topics": (tokens_lost, both_lost)})
        with working(new) as service:
            service.wait_until(lambda: oracle.store_is_complete(new, [chains[tokens_lost], chains[both_lost]]))
            for name in (tokens_lost, both_lost):
                oracle.assert_store_equal(new, chains[name])
        trial.held("exact", "complete", "topic", "loud")


FIT = {"packing": {"name": "fit", "open_blocks": 8, "max_age_offsets": 300}, "session_timeout": 2.0}
TEXTS = [b"%c" % (97 + n) * (5 + 11 * n % 50) for n in range(20)]
WORDS = "words of a split so thin; "


@pytest.mark.needs("minutes")
@pytest.mark.fault("worker-killed")
def test_open_blocks_outlive_the_workers_that_have_them(configured: Configured, trial: Trial) -> None:
    """Mills die in the middle of their work; the next ones read again what the open blocks refer to."""
    settings = configured(2, splits={"train": 900, "dev": 100}, **FIT)
    rounds = trial.rounds(3, 25)
    with working(settings) as service:
        with Feeder(settings, trial.rng, burst=BURST):
            for _ in range(rounds):
                kill_one(service, "mill", trial)
        oracle.judge(service, trial)
        messages = [m for s in settings.streams() for m in oracle.token_messages(settings, s)]
    assert max(len(split_references(message.references).counts) for message in messages) == 8
    assert trial.faults == {"mill SIGKILL": rounds}


@pytest.mark.needs("minutes")
@pytest.mark.fault("source-retained")
def test_open_blocks_outlive_the_records_that_they_are_made_of(configured: Configured, trial: Trial) -> None:
    """Half of the raw topic's retention is over: a carry holds them by value, and a new worker begins with it."""
    settings = configured(1, splits={"train": 1000}, **FIT)
    (stream,), (raw_topic,) = settings.streams(), settings.raw_topics

    def held_by_value() -> int:
        """Return the source offset up to which a carry holds the open blocks by value; 0 where none does."""
        messages = oracle.token_messages(settings, stream)
        return max([0, *(m.cursor.next_offset for m in messages if m.references and m.open_tokens)])

    configure(settings, raw_topic, "retention.ms", "2000")  # the broker looks every five minutes
    send(settings, map(Raw, TEXTS))
    before = oracle.read_topic(settings, raw_topic, 0)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until(lambda: held_by_value() == len(TEXTS))
        configure(settings, raw_topic, "retention.ms", "-1")
        delete_records(settings, raw_topic, 0, len(TEXTS))
        trial.fired("records of open blocks removed", len(TEXTS))
        mill.kill()
        (mill,) = service.mill()
        service.wait_until(lambda: f"{raw_topic}/0" in mill.partitions)
        send(settings, map(Raw, TEXTS))
        flush_all(settings)
        after: list[oracle.Kept] = []
        while len(after) < len(TEXTS) + 1:  # at first the reader may take the topic's end for what it was
            after = [kept for kept in oracle.read_topic(settings, raw_topic, 0) if kept.offset >= len(TEXTS)]
        chains = oracle.expected_chains(settings, {0: [*before, *after]})
        service.wait_until(lambda: oracle.store_is_complete(settings, chains))
        assert not mill.partitions[f"{raw_topic}/0"]["halted"]
    for chain in chains:
        oracle.assert_store_equal(settings, chain)
    trial.held("exact", "complete", "alive", blocks=sum(len(chain.blocks) for chain in chains))


@pytest.mark.needs("minutes")
@pytest.mark.fault("source-recreated")
def test_another_text_of_the_same_length_under_an_open_block_halts_the_partition(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """The record that the cursor remembers is there as it was; the one that an open block refers to is not."""
    settings = configured(1, splits={"train": 1000}, carry_seconds=0.5, **FIT)
    (stream,), (raw_topic,) = settings.streams(), settings.raw_topics

    async def send_at(texts: list[bytes]) -> None:
        """Send texts with timestamps of their own, so that they can be sent again as they were."""
        async with producer(settings) as client:
            for n, text in enumerate(texts):
                await client.send(raw_topic, text, None, 0, timestamp_ms=10**12 + n)
            await client.flush()

    in_own_loop(lambda: send_at(TEXTS))
    with Service(settings, tmp_path) as service:
        (mill,) = service.mill()

        def last() -> bytes:
            """Return the open blocks behind all texts; a carry before might name a block that is not open for long."""
            message = next(reversed(oracle.token_messages(settings, stream)), None)
            whole = message is not None and message.is_carry and message.cursor.next_offset == len(TEXTS)
            return message.references if message is not None and whole else b""

        service.wait_until(lambda: bool(last()))
        offset = split_references(last()).oldest
        assert offset < len(TEXTS) - 1
        mill.kill()
        recreate(settings, raw_topic, 1)
        in_own_loop(lambda: send_at([b"?" * len(text) if n == offset else text for n, text in enumerate(TEXTS)]))
        trial.fired("raw record replaced by one of its length")
        (mill,) = service.mill()
        service.wait_until(lambda: bool(halted(mill, f"{raw_topic}/0")))
        assert f"the record at offset {offset} of {raw_topic}, of which an open block" in halted(mill, f"{raw_topic}/0")
        assert "begin a new stream with stream_suffix" in halted(mill, f"{raw_topic}/0")
    trial.held("loud")


@pytest.mark.needs("minutes")
@pytest.mark.fault("thin-split", "source-retained")
def test_open_block_outlives_what_it_was_made_of(tmp_path: Path, trial: Trial) -> None:
    """Retention removes the record, and the first carries; a new worker continues the block from a later carry."""
    with Broker(tmp_path / "broker", settings={"log.retention.check.interval.ms": "300"}) as broker:
        raw_topic = topics_on(broker, "thin")(1)
        splits = {"train": 998, "thin": 1, "empty": 1}
        settings = service_settings(broker, raw_topic, tmp_path, session_timeout=2.0, carry_seconds=0.5, splits=splits)
        thin = [stream.tokens_topic for stream in settings.streams() if stream.split != "train"]
        for topic in thin:
            configure(settings, topic, "segment.ms", "500")
            configure(settings, topic, "retention.ms", "6000")  # the mill learns it at its start

        def feed(split: str, text: str, times: int = 1) -> None:
            send(settings, [Raw(oracle.document_for(settings, raw_topic, split, text))] * times)

        def carried() -> set[int]:
            """Return the source offsets up to which the chains of the mill are published."""
            chains = mill.partitions.get(f"{raw_topic}/0", {}).get("chains", {})
            return {chain["offset"] for chain in chains.values()}

        def gone(topics: list[str], wanted: Callable[[int, int], bool]) -> Callable[[], bool]:
            return lambda: all(wanted(*oracle.watermarks(settings, topic)) for topic in topics)

        feed("thin", WORDS)
        feed("train", "what most of the text is; ", 200)
        before = oracle.read_topic(settings, raw_topic, 0)
        with working(settings) as service:
            mill, _ = service.workers
            service.wait_until(lambda: carried() == {len(before)})
            configure(settings, raw_topic, "retention.ms", "1")
            service.wait_until(gone([raw_topic], lambda first, end: first == end))
            trial.fired("records of the open block removed", len(before))
            for _ in range(trial.rounds(1, 5)):
                first = oracle.watermarks(settings, thin[0])[0]
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
            after = [kept for kept in oracle.read_topic(settings, raw_topic, 0) if kept.offset > before[-1].offset]
            chains = oracle.expected_chains(settings, {0: [*map(oracle.Kept._make, before), *after]})
            service.wait_until(lambda: oracle.store_is_complete(settings, chains))
            assert mill.running
            assert not mill.partitions[f"{raw_topic}/0"]["halted"]
        for chain in chains:
            assert chain.blocks
            oracle.assert_store_equal(settings, chain)
        trial.held("exact", "complete", "alive", blocks=sum(len(chain.blocks) for chain in chains))

"""The judge of every fault test: what the reference makes of the raw topics, against all that the service wrote.

It reads with another Kafka client than the service, opens the store's files with nothing but ``open``, and accepts
messages with code of its own.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as KafkaMessage

from tests.eras.judging import chain_of, read_ended, stops_of
from tests.faults.trial import Trial
from tests.service import stored_blocks
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.milling.outcomes import Kind, Outcome
from tokenmill.app.milling.recipe_stages import reopen_stages
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.tokenizers import REFERENCE, TOKENIZER_FAILED, Engine, load_tokenizer
from tokenmill.app.settings import Settings, Stream, dead_letter_topic
from tokenmill.documents import Record
from tokenmill.store import open_partition
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import HEADER_NAME, Message, decode_message
from tokenmill.wire.totals import Totals

POLL_SECONDS: Final = 20.0
"""How long the broker may be silent before a read fails; takes milliseconds."""
PREFIX: Final = "tokenmill.dead-letter."


class Judged(Protocol):
    """A service that runs: `tests.service.Service`, which tests tend, or `tests.faults.serving.Serving`."""

    settings: Settings

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, not for ever."""

    def tend(self) -> None:
        """Start anew what ended in order to be started anew, where nobody else does."""


class Kept(NamedTuple):
    """One record as the neutral client saw it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Expected:
    """One chain as it must be."""

    stream: Stream
    partition: int
    blocks: list[ReferenceBlock]
    totals: Totals
    dead: Mapping[int, str]
    """Offset and reason of every record of the raw partition that is no document, whichever split owns it."""


class Account(NamedTuple):
    """What a run came to, all of it right."""

    blocks: int
    duplicates: int
    """Blocks that stand on the token topics more than once, with the same content."""
    dead_letters: int
    """Records that were dead-lettered; each once or more often."""
    eras: int = 0
    """Of all streams together, each with at least one block."""


def read_topic(settings: Settings, topic: str, partition: int, reader: Consumer | None = None) -> list[Kept]:
    """Return the committed records of a partition; threads bring readers of their own."""
    reader = reader or _reader(settings.bootstrap_servers)
    kept: list[Kept] = []
    reader.list_topics(topic, POLL_SECONDS)  # else it learns of the topic in a second, by the way
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    while True:
        message = reader.poll(POLL_SECONDS)
        assert message is not None, f"the broker did not answer for {topic}[{partition}]"
        if error := message.error():
            if error.code() == KafkaError._PARTITION_EOF:
                return kept
            continue  # a broker that restarts, or a topic that is being made again: it tries again by itself
        kept.append(kept_of(message))


def kept_of(message: KafkaMessage) -> Kept:
    """Return a message without the client's wrapping."""
    pairs: Any = message.headers() or []  # its type has a dictionary as well, which it never is here
    headers = [(name, _or_none(value) or b"") for name, value in pairs]
    offset, timestamp = message.offset(), message.timestamp()[1]
    assert offset is not None
    return Kept(offset, timestamp, _or_none(message.key()), _or_none(message.value()), headers)


def partitions_of(settings: Settings, topic: str) -> int:
    """Return the number of a topic's partitions."""
    return len(_reader(settings.bootstrap_servers).list_topics(topic, POLL_SECONDS).topics[topic].partitions)


@cache
def _reader(bootstrap_servers: str) -> Consumer:
    """Return the one reader of a broker: a new one takes half a second to begin."""
    return new_reader(bootstrap_servers)


def forget_topics() -> None:
    """Begin with new readers: one that knew a topic that was made anew may wait long for the old one."""
    _reader.cache_clear()


def new_reader(bootstrap_servers: str) -> Consumer:
    """Return a reader for one thread."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "oracle",  # never joined: partitions are assigned by hand
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is told this late
            "isolation.level": "read_committed",
            "log_level": 0,  # it outlives the broker, and need not say so
        }
    )


def read_control(settings: Settings, stream: Stream, reader: Consumer | None = None) -> ControlLog:
    """Return what a stream's control topic says."""
    log = ControlLog()
    for record in read_topic(settings, stream.control_topic, 0, reader):
        log.add(record.key, record.value)
    return log


def expected_chains(settings: Settings, logs: Mapping[int, list[Kept]] | None = None) -> list[Expected]:
    """Return every chain as the reference makes it of its genesis, its skip list and what the raw topic holds.

    Where the raw topic, there is but one, no longer holds it all, ``logs`` are its partitions as they were.
    """
    chains = []
    for stream in settings.streams():
        control = read_control(settings, stream)
        assert control.genesis is not None, f"{stream.name} has no genesis"
        recipe = control.genesis.recipe
        stages = reopen_stages(recipe, load_tokenizer(settings.tokenizer), REFERENCE, lists=control.lists())
        for partition in range(partitions_of(settings, stream.raw_topic)):
            start, skips = control.genesis.start(partition), control.skips.get(partition, set())
            log = read_topic(settings, stream.raw_topic, partition) if logs is None else logs[partition]
            records = [Record(*kept) for kept in log]
            reference = Reference(recipe, stages, partition, start, skips)
            blocks = list(reference.blocks(records))
            outcomes = [stages.outcome(record, skips) for record in records if record.offset >= start]
            dead = {o.record.offset: o.reason for o in outcomes if o.kind is Kind.DEAD_LETTERED}
            dead |= {o.record.offset: TOKENIZER_FAILED for o in outcomes if fails(stages.engine, o)}
            chains.append(Expected(stream, partition, blocks, reference.totals, dead))
    return chains


def fails(engine: Engine, outcome: Outcome) -> bool:
    """Return whether the tokenizer fails on a record's text."""
    return outcome.document is not None and bool(engine.encode([outcome.document.text]).failed)


def judge(service: Judged, trial: Trial | None = None) -> tuple[Account, list[Expected]]:
    """Wait until the store is complete, eras and all, starting workers anew as a supervisor does; hold all to account.

    The raw topics must have got all that they will get. What held is noted in ``trial``.
    """
    settings = service.settings
    service.wait_until(lambda: all(read_control(settings, stream).genesis for stream in settings.streams()))
    chains = expected_chains(settings)

    def complete() -> bool:
        service.tend()
        return store_is_complete(settings, chains) and eras_are_complete(settings, chains)

    service.wait_until(complete)
    account = assert_all_equal(settings, chains)._replace(eras=assert_eras_right(settings, chains))
    print(account)  # noqa: T201 - what the run came to
    if trial is not None:
        trial.held("exact", "complete", "conserved", "dead letters", "topic", "eras", **account._asdict())
    return account, chains


def store_is_complete(settings: Settings, chains: Collection[Expected]) -> bool:
    """Return whether the store has committed as many blocks of each chain as the reference made."""
    wanted = {(chain.stream.name, chain.partition): len(chain.blocks) for chain in chains}
    return all(blocks >= wanted[chain] for chain, blocks in stored_blocks(settings, wanted).items())


def eras_of(settings: Settings, stream: Stream, reader: Consumer | None = None) -> list[bytes]:
    """Return the records on a stream's control topic that are its eras; none before there is a genesis."""
    kept = read_topic(settings, stream.control_topic, 0, reader)
    log = ControlLog()
    for record in kept:
        log.add(record.key, record.value)
    if log.genesis is None:
        return []
    return chain_of((record.value for record in kept if record.key == b"era"), log.genesis.recipe.fingerprint)


def stored_eras(settings: Settings, stream: Stream) -> list[bytes]:
    """Return the lines of the store's eras, those as well that are not committed yet."""
    path = settings.store / stream.name / "eras.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def eras_are_complete(settings: Settings, chains: Collection[Expected]) -> bool:
    """Return whether all blocks of the chains are in eras, or the stream was closed, and the store has all eras."""
    for stream in {chain.stream for chain in chains}:
        eras = eras_of(settings, stream)
        stops = dict(enumerate(stops_of(eras)))
        ended = bool(eras) and read_ended(eras[-1])
        ours = [chain for chain in chains if chain.stream == stream]
        if stored_eras(settings, stream) != eras:
            return False
        if not ended and any(stops.get(chain.partition, 0) < len(chain.blocks) for chain in ours):
            return False
    return True


def assert_eras_right(settings: Settings, chains: Collection[Expected]) -> int:
    """Hold the eras on the control topics, and in the store, against the chains; return how many there are.

    Each names the hashes that its blocks really have, and a store has the first ones of the topic's, byte for byte.
    That ranges continue each other is what makes a record an era (`tests.eras.judging`).
    """
    count = 0
    for stream in {chain.stream for chain in chains}:
        eras, stored = eras_of(settings, stream), stored_eras(settings, stream)
        assert stored == eras[: len(stored)], f"{stream.name}: the store has other eras than the control topic"
        blocks = {chain.partition: chain for chain in chains if chain.stream == stream}
        fingerprint = read_fingerprint(settings, stream)
        for era in map(json.loads, eras):
            for partition, (_, stop, _, after) in enumerate(era["ranges"]):
                where = f"{stream.name}: era {era['era']}, partition {partition}"
                chain = blocks[partition]
                assert stop <= len(chain.blocks), f"{where} goes beyond the last block"
                known = chain.blocks[stop - 1].chain if stop else genesis_hash(fingerprint, partition)
                assert after == known.hex(), f"{where} names another hash"
        count += len(eras)
    return count


def read_fingerprint(settings: Settings, stream: Stream) -> bytes:
    """Return the fingerprint that a stream's genesis has."""
    genesis = read_control(settings, stream).genesis
    assert genesis is not None, f"{stream.name} has no genesis"
    return genesis.recipe.fingerprint


def assert_all_equal(settings: Settings, chains: Collection[Expected]) -> Account:
    """Hold store, token topics and dead letters against the chains, and the totals against their equation."""
    assert any(chain.blocks for chain in chains), "nothing was to be milled: the test proves nothing"
    duplicates = 0
    for chain in chains:
        assert chain.totals.balanced
        assert_store_equal(settings, chain)
        duplicates += assert_topic_equal(settings, chain)
    dead = assert_dead_letters_equal(settings, chains)
    return Account(sum(len(chain.blocks) for chain in chains), duplicates, dead)


def assert_store_equal(settings: Settings, chain: Expected) -> None:
    """Hold the store's files of a chain, byte for byte, against its blocks."""
    directory = settings.store / chain.stream.name / str(chain.partition)
    where = f"{chain.stream.name} partition {chain.partition}"
    reader = open_partition(settings.store, chain.stream.name, chain.partition, check=True)
    assert reader.blocks == len(chain.blocks), where
    if not chain.blocks:
        return
    tokens = b"".join(path.read_bytes() for path in sorted(directory.glob("*.bin")))
    entries = b"".join(path.read_bytes() for path in sorted(directory.glob("*.docs")))
    assert tokens == b"".join(block.tokens for block in chain.blocks), where
    assert entries == b"".join(block.entry for block in chain.blocks), where
    for block in chain.blocks:
        assert reader.chain_before(block.number + 1) == block.chain, f"{where}, block {block.number}"


def assert_topic_equal(settings: Settings, chain: Expected, strays: int = 0) -> int:
    """Hold a token partition against its chain; return the number of blocks that stand there more than once.

    The first ``strays`` messages may stand before blocks that come before theirs.
    """
    where = f"{chain.stream.tokens_topic}[{chain.partition}]"
    found: dict[int, tuple[bytes, bytes]] = {}
    duplicates = 0
    for place, message in enumerate(token_messages(settings, chain)):
        hole = bool(message.first) and message.first - 1 not in found
        assert place < strays or not hole, f"{where}: a hole before block {message.first}"
        size = len(message.tokens) // max(message.count, 1)
        for index, entry in enumerate(message.entries):
            block = (bytes(message.tokens[index * size : (index + 1) * size]), entry)
            number = message.first + index
            duplicates += number in found
            assert found.setdefault(number, block) == block, f"{where}: block {number} differs from itself"
        if message.count:
            reference = chain.blocks[message.end - 1]
            assert message.after == reference.chain, where
            assert message.cursor == reference.cursor, where
            assert message.totals == reference.totals, where
    assert [found[number] for number in range(len(found))] == [(b.tokens, b.entry) for b in chain.blocks], where
    return duplicates


def token_messages(settings: Settings, chain: Expected) -> list[Message]:
    """Return what stands on a chain's token partition, in the order of the offsets, but for what people let ignore."""
    ignored = read_control(settings, chain.stream).ignored
    kept = read_topic(settings, chain.stream.tokens_topic, chain.partition)
    wanted = [record for record in kept if not ignored.names(chain.partition, record)]
    return [decode_message(dict(record.headers)[HEADER_NAME], record.value) for record in wanted]


def read_letters(settings: Settings, raw_topic: str) -> list[Kept]:
    """Return what stands on all partitions of the dead-letter topic of a raw topic."""
    topic = dead_letter_topic(raw_topic)
    return [
        record for number in range(partitions_of(settings, topic)) for record in read_topic(settings, topic, number)
    ]


def assert_dead_letters_equal(settings: Settings, chains: Collection[Expected]) -> int:
    """Hold the dead letters, counted by topic, partition and offset, against those of the chains."""
    wanted = {(c.stream.raw_topic, c.partition, offset): why for c in chains for offset, why in c.dead.items()}
    found: dict[tuple[str, int, int], str] = {}
    for topic in {chain.stream.raw_topic for chain in chains}:
        for record in read_letters(settings, topic):
            ours = [(name, value) for name, value in record.headers if name.startswith(PREFIX)]
            about = {name.removeprefix(PREFIX): value.decode() for name, value in reversed(ours)}  # the first counts
            found[about["topic"], int(about["partition"]), int(about["offset"])] = about["reason"]
    assert found == wanted
    return len(found)


def _or_none(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None

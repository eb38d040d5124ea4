"""The judge of every fault test: what the reference makes of the raw topics, against all that the service wrote.

It reads with another Kafka client than the service, opens the store's files with nothing but ``open``, and accepts
messages with code of its own.
"""

import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as KafkaMessage

from tests.eras.judging import chain_of, read_ended, stops_of
from tests.faults.trial import Trial
from tests.service import Chain, Raw, Service, Worker, send, stored_blocks
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.recipe_stages import reopen_stages
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.tokenizers import REFERENCE, TOKENIZER_FAILED, load_tokenizer
from tokenmill.app.settings import Settings, Stream, dead_letter_topic
from tokenmill.documents import Document, Record
from tokenmill.errors import StoreError
from tokenmill.store import open_partition
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import HEADER_NAME, Message, decode_message
from tokenmill.wire.totals import Totals

POLL_SECONDS: Final = 20.0  # how long the broker may be silent before a read fails; takes milliseconds
PREFIX: Final = "tokenmill.dead-letter."


class Judged(Protocol):
    """A service that runs: `tests.service.Service`, which tests tend, or `tests.faults.serving.Serving`."""

    settings: Settings

    def wait_until(self, condition: Callable[[], bool]) -> None: ...

    def tend(self) -> None:
        """Start anew what ended in order to be started anew, where nobody else does."""


class Kept(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Expected:
    stream: Stream
    partition: int
    blocks: list[ReferenceBlock]
    totals: Totals
    dead: Mapping[int, str]
    """Offset and reason of every record of the raw partition that is no document, whichever split owns it."""


class Account(NamedTuple):
    """What a run came to, all of it right."""

    blocks: int
    duplicates: int  # blocks that stand on the token topics more than once, with the same content
    dead_letters: int  # records that were dead-lettered; each once or more often
    eras: int = 0  # of all streams together, each with at least one block


def read_topic(settings: Settings, topic: str, partition: int = 0, reader: Consumer | None = None) -> list[Kept]:
    """Return the committed records of a partition; threads bring readers of their own."""
    reader = reader or shared_reader(settings.bootstrap_servers)
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
    told: Any = message  # its types have strings as well, which it never gives here
    headers = [(name, value or b"") for name, value in told.headers() or []]
    return Kept(told.offset(), told.timestamp()[1], told.key(), told.value(), headers)


def partitions_of(settings: Settings, topic: str) -> int:
    return len(shared_reader(settings.bootstrap_servers).list_topics(topic, POLL_SECONDS).topics[topic].partitions)


def watermarks(settings: Settings, topic: str, partition: int = 0, reader: Consumer | None = None) -> tuple[int, int]:
    reader = reader or shared_reader(settings.bootstrap_servers)
    return reader.get_watermark_offsets(TopicPartition(topic, partition), POLL_SECONDS)


def new_reader(bootstrap_servers: str) -> Consumer:
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


shared_reader: Final = cache(new_reader)
"""Returns the one reader of a broker: a new one takes half a second to begin. One that knew a topic that was made anew
may wait long for the old one; `cache_clear` begins with new ones."""


def read_control(settings: Settings, stream: Stream, reader: Consumer | None = None) -> ControlLog:
    return _control_of(read_topic(settings, stream.control_topic, 0, reader))


def _control_of(records: Iterable[Kept]) -> ControlLog:
    log = ControlLog()
    for record in records:
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
            texts = {o.record.offset: o.document.text for o in outcomes if o.document is not None}
            dead |= {at: TOKENIZER_FAILED for at, text in texts.items() if stages.engine.encode([text]).failed}
            chains.append(Expected(stream, partition, blocks, reference.totals, dead))
    return chains


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
    wanted = {(chain.stream.name, chain.partition): len(chain.blocks) for chain in chains}
    return all(blocks >= wanted[chain] for chain, blocks in stored_blocks(settings, wanted).items())


def eras_of(settings: Settings, stream: Stream, reader: Consumer | None = None) -> list[bytes]:
    """Return the records on a stream's control topic that are its eras; none before there is a genesis."""
    kept = read_topic(settings, stream.control_topic, 0, reader)
    if (genesis := _control_of(kept).genesis) is None:
        return []
    return chain_of((record.value for record in kept if record.key == b"era"), genesis.recipe.fingerprint)


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
        genesis = read_control(settings, stream).genesis
        assert genesis is not None, f"{stream.name} has no genesis"
        for era in map(json.loads, eras):
            for partition, (_, stop, _, after) in enumerate(era["ranges"]):
                where = f"{stream.name}: era {era['era']}, partition {partition}"
                chain = blocks[partition]
                assert stop <= len(chain.blocks), f"{where} goes beyond the last block"
                known = chain.blocks[stop - 1].chain if stop else genesis_hash(genesis.recipe.fingerprint, partition)
                assert after == known.hex(), f"{where} names another hash"
        count += len(eras)
    return count


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
    for place, message in enumerate(token_messages(settings, chain.stream, chain.partition)):
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


def token_messages(settings: Settings, stream: Stream, partition: int = 0) -> list[Message]:
    """Return what stands on a token partition, in the order of the offsets, but for what people let ignore."""
    ignored = read_control(settings, stream).ignored
    kept = read_topic(settings, stream.tokens_topic, partition)
    return [message_of(record) for record in kept if not ignored.names(partition, record)]


def message_of(record: Kept) -> Message:
    return decode_message(dict(record.headers)[HEADER_NAME], record.value)


def read_letters(settings: Settings, raw_topic: str) -> list[Kept]:
    topic = dead_letter_topic(raw_topic)
    numbers = range(partitions_of(settings, topic))
    return [record for number in numbers for record in read_topic(settings, topic, number)]


def about(letter: Kept) -> dict[str, bytes]:
    ours = [(name.removeprefix(PREFIX), value) for name, value in letter.headers if name.startswith(PREFIX)]
    return dict(reversed(ours))  # the first of a name counts: a record's own may be called the same


def assert_dead_letters_equal(settings: Settings, chains: Collection[Expected]) -> int:
    wanted = {(c.stream.raw_topic, c.partition, offset): why for c in chains for offset, why in c.dead.items()}
    found: dict[tuple[str, int, int], str] = {}
    for topic in {chain.stream.raw_topic for chain in chains}:
        for record in read_letters(settings, topic):
            said = about(record)
            place = said["topic"].decode(), int(said["partition"]), int(said["offset"])
            found[place] = said["reason"].decode()
    assert found == wanted
    return len(found)


_numbers = itertools.count()


def assert_alive_again(service: Judged, trial: Trial) -> None:
    """Send every chain a document longer than a block, and wait until the last of them is committed.

    The fault must have healed when this is called. Tokens must be bytes.
    """
    settings = service.settings
    mark, began = f"probe {next(_numbers)} ", time.monotonic()
    counts = {raw_topic: partitions_of(settings, raw_topic) for raw_topic in settings.raw_topics}
    streams = settings.streams()
    wanted = stored_blocks(settings, [(s.name, number) for s in streams for number in range(counts[s.raw_topic])])
    for raw_topic, count in counts.items():
        text = mark * (2 * settings.for_topic(raw_topic).block_tokens // len(mark) + 2)
        probes = [document_for(settings, raw_topic, s.split, text) for s in streams if s.raw_topic == raw_topic]
        send(settings, [Raw(probe, number) for number in range(count) for probe in probes], raw_topic)

    def has_come(chain: Chain, first: int) -> bool:
        try:
            reader = open_partition(settings.store, *chain)
        except StoreError:  # no segment worker has heard of the stream yet
            return False
        return any(mark.encode() in reader.read(n).tobytes() for n in range(max(first, 0), reader.blocks))

    def come() -> bool:
        service.tend()
        for chain in [chain for chain, first in wanted.items() if has_come(chain, first)]:
            del wanted[chain]
        return not wanted

    service.wait_until(come)
    trial.lived(time.monotonic() - began)


def assert_stores_again(service: Service, trial: Trial) -> None:
    """Wait until the store has more than is milled by now, in every chain: for where documents flow all the while."""
    began, goal = time.monotonic(), milled(service)
    assert goal
    service.wait_until(lambda: all(n > goal[chain] for chain, n in stored_blocks(service.settings, goal).items()))
    trial.lived(time.monotonic() - began)


def milled(service: Service) -> dict[Chain, int]:
    """Return the next block of every chain that the mills milled."""
    return {chain: block for worker in service.workers for chain, block in next_blocks(worker).items()}


def next_blocks(worker: Worker) -> dict[Chain, int]:
    """Return the next block of every chain of a mill; nothing of a segment worker."""
    return {
        (f"{name.rpartition('/')[0]}.{split}", int(name.rpartition("/")[2])): chain["block"]
        for name, partition in worker.partitions.items()
        for split, chain in partition.get("chains", {}).items()
    }


def document_for(settings: Settings, raw_topic: str, split: str, text: str) -> bytes:
    rule = settings.for_topic(raw_topic).split_rule()
    ids = (f"{hash(text):x}-{number}" for number in itertools.count())
    chosen = next(name for name in ids if rule.split_of_document(Document(text=text, id=name)) == split)
    return json.dumps({"id": chosen, "text": text}).encode()

"""Raw topics with new partitions, compressed batches, transactions or a backlog; groups whose offsets are moved."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.commands import run
from tests.faults.altering import committed, delete_group, grow, move
from tests.faults.conftest import Configured, each_packing
from tests.faults.failpoints import FETCH_BYTES, STALL
from tests.faults.feeding import Feeder, document, flush_all
from tests.faults.oracle import assert_alive_again, eras_of, judge, partitions_of, read_control, token_messages
from tests.faults.serving import Serving, most_memory, working
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, send
from tokenmill.app.mill.publisher import PENDING_BYTES
from tokenmill.app.settings import Settings
from tokenmill.store import Store


@pytest.mark.fault("partitions-added")
@pytest.mark.needs("minutes")
@each_packing
def test_new_partitions_are_milled_from_their_first_record(
    configured: Configured, tmp_path: Path, trial: Trial, packing: dict[str, Any]
) -> None:
    """Mills extend the token topics, segment workers follow; the chains of new partitions begin at offset 0.

    Nobody restarts, creates or configures anything by hand.
    """
    settings = configured(session_timeout=2.0, splits={"train": 900, "dev": 100}, **packing)
    (raw_topic,) = settings.raw_topics
    with Serving(settings, tmp_path) as service:
        assert_alive_again(service, trial)
        count = 1
        for _ in range(trial.rounds(2, 10)):
            with Feeder(settings, trial.rng, burst=3):
                count += trial.rng.randint(1, 2)
                grow(settings, raw_topic, count)
            with Feeder(settings, trial.rng, burst=3):  # it learns of the new ones when it begins
                assert_alive_again(service, trial)
        _, chains = judge(service, trial)
        assert "worker ended" not in service.log
    for stream in settings.streams():
        genesis = read_control(settings, stream).genesis
        assert genesis is not None
        assert len(genesis.starts) == 1
        assert partitions_of(settings, stream.tokens_topic) == count
        known = [len(json.loads(era)["ranges"]) for era in eras_of(settings, stream)]
        assert known == sorted(known), "an era forgot a partition"
        assert known[-1] == count, "a new partition is in no era"
        trial.held(eras_before_the_last_partition=sum(partitions < count for partitions in known))
        grown = [chain for chain in chains if chain.stream == stream and chain.partition]
        assert all(chain.blocks[0].cursor.last_offset >= 0 and chain.blocks for chain in grown)
        trial.fired("token partitions added", len(grown))


@pytest.mark.fault("groups-moved")
@pytest.mark.needs("minutes")
def test_positions_come_from_the_data_alone(configured: Configured, trial: Trial) -> None:
    """Groups of mill and store: a thousand back, a thousand ahead (beyond the end), gone; no block is lost or twice."""
    settings = configured(2, session_timeout=2.0, splits={"train": 1000})

    def work() -> None:
        send(settings, [Raw(document(trial.rng), number % 2) for number in range(3000)])
        flush_all(settings)
        with working(settings) as service:
            account, _ = judge(service, trial)
            assert not account.duplicates
            service.stop()

    work()
    groups = [settings.group, f"{settings.group}-store-{Store.open(settings.store).id}"]
    for group in groups:
        found = committed(settings, group)
        assert len(found) == 2, "the offsets are published, for people"
        moved = {place: max(0, at + (1000 if place[1] else -1000)) for place, at in found.items()}
        move(settings, group, moved)
        assert committed(settings, group) == moved
        trial.fired("offsets moved", len(moved))
    work()
    for group in groups:
        delete_group(settings, group)
        assert not committed(settings, group)
        trial.fired("group deleted")
    work()


def other_producer(settings: Settings, **options: str) -> Producer:
    names = {name.replace("_", "."): value for name, value in options.items()}
    return Producer({"bootstrap.servers": settings.bootstrap_servers, "linger.ms": 20, **names})


@pytest.mark.fault("source-gaps")
def test_compressed_topics_are_read_and_flushed(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Batches of every codec, from another client; `tokenmill flush` brings the last tokens into blocks."""
    settings = configured(2, session_timeout=2.0)
    (raw_topic,) = settings.raw_topics
    for codec in ("gzip", "lz4", "snappy", "zstd"):
        client = other_producer(settings, compression_type=codec)
        for number in range(40):
            client.produce(raw_topic, f"{codec} {number} ".encode() * 9, partition=number % 2)
        client.flush()
    with working(settings) as service:
        service.wait_until_complete()
        assert run(["flush", raw_topic], tmp_path / "flush.log", settings.environment()).code == 0
        _, chains = judge(service, trial)
        trial.fired("batches compressed by another client", 4)
        assert all(chain.totals.flushes == 1 for chain in chains)
        assert sum(block.tokens.count(b"zstd 39") for chain in chains for block in chain.blocks) > 0


@pytest.mark.fault("source-gaps")
def test_aborted_records_are_never_milled(configured: Configured, trial: Trial) -> None:
    """Only what was committed is milled; a carry's position goes past markers and aborted records at the end.

    Who takes over begins behind the last record all the same: what the log holds there now may be text.
    """
    settings = configured(session_timeout=2.0, carry_seconds=0.5, splits={"train": 1000})
    (raw_topic,) = settings.raw_topics
    client = other_producer(settings, transactional_id=raw_topic)
    client.init_transactions(30)
    for value in (b"first " * 2, b"ABORTED " * 50, b"second " * 2, b"ABORTED " * 50):
        client.begin_transaction()
        client.produce(raw_topic, value, partition=0)
        client.flush()  # an aborted record must be in the log to be there at all
        (client.abort_transaction if b"ABORTED" in value else client.commit_transaction)(30)
    second, end = 4, 8  # four records, a marker after each

    def carried() -> tuple[int, bytes] | None:
        """Return the position of the last carry, and the last word in its open block."""
        if not (messages := token_messages(settings, settings.streams()[0])):
            return None
        return messages[-1].cursor.next_offset, bytes(messages[-1].open_tokens).rstrip(b"\0 ").rpartition(b" ")[2]

    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until(lambda: carried() == (end, b"second"))
        mill.kill()
        (mill,) = service.mill()
        service.wait_until(lambda: any(p["position"] == end for p in mill.partitions.values()))
        assert mill.log.count(f'"offset": {second + 1}') == 1, "it resumed behind the last record"
        client.begin_transaction()
        client.produce(raw_topic, b"third " * 50, partition=0)
        client.commit_transaction(30)
        flush_all(settings)
        _, chains = judge(service, trial)
        trial.fired("transactions aborted", 2)
        assert b"ABORT" not in b"".join(block.tokens for chain in chains for block in chain.blocks)


DOCUMENT_BYTES = 8192
QUEUED_FETCHES = 6
"""Fetches that may lie, whole, between Kafka and the mill: the agent's queue, the one at work, and those on their way
when the queue was found full."""
GROWTH_BYTES = 96 << 20  # how much larger a worker may become under a backlog than it is without: measured 20 to 40 MB


@pytest.mark.fault("backlog")
@pytest.mark.needs("minutes")
def test_backlog_is_bounded_in_memory(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """The token topic takes nothing for a while: the mill stops reading where its queues are full, then goes on."""
    settings = configured(splits={"train": 1000}, sequence_length=2047, message_bytes=256 << 10)
    documents = trial.rounds(40, 96) * (1 << 20) // DOCUMENT_BYTES
    text = b"a document in a backlog " * (DOCUMENT_BYTES // 24)
    stalled = tmp_path / "stalled"
    stalled.touch()
    with Service(settings, tmp_path) as service:
        service.entry = "tests.faults.failpoints"
        (mill,) = service.mill(environment={STALL: str(stalled)})
        service.wait_until(lambda: bool(mill.partitions))
        before = most_memory(mill.process.pid)
        send(settings, [Raw(b"%8d %s" % (number, text)) for number in range(documents)])
        flush_all(settings)
        service.wait_until(lambda: stands_still(service, mill))
        position, durable = place(mill)
        assert durable == 0
        trial.fired("the token topic took nothing")
        held = position * DOCUMENT_BYTES
        assert held <= PENDING_BYTES + QUEUED_FETCHES * FETCH_BYTES
        stalled.unlink()
        service.wait_until(lambda: place(mill)[1] > documents)
        grown = most_memory(mill.process.pid) - before
        segment = service.segment()
        service.wait_until(lambda: bool(segment.partitions))
        small = most_memory(segment.process.pid)
        judge(service, trial)
        stored = most_memory(segment.process.pid) - small
        assert grown < GROWTH_BYTES
        assert stored < GROWTH_BYTES
    trial.held(MB_held_back=held >> 20, MB_mill_grew_by=grown >> 20, MB_segment_worker_grew_by=stored >> 20)


def place(mill: Worker) -> tuple[int, int]:
    """Return up to where the only partition has been milled, and up to where that is published."""
    partition = next(iter(mill.partitions.values()), {})
    chains = partition.get("chains", {}).values()
    return partition.get("position", 0), min((chain["offset"] for chain in chains), default=0)


def stands_still(service: Service, mill: Worker) -> bool:
    """Return whether a mill that had begun does not come further: it beats twice a second."""
    seen: list[int] = []

    def looked() -> bool:
        seen.append(place(mill)[0])
        return len(seen) > 30

    service.wait_until(looked)
    return seen[0] > 0 and len(set(seen)) == 1

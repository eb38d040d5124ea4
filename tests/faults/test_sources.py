"""Raw topics as they come: compressed by any client, written in transactions."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.commands import run
from tests.faults.conftest import Configured
from tests.faults.feeding import flush_all
from tests.faults.oracle import judge, read_topic
from tests.faults.trial import Trial
from tests.faults.working import working
from tokenmill.app.settings import Settings
from tokenmill.wire.message import HEADER_NAME, decode_message

ABORTED = b"ABORTED " * 50


def other_producer(settings: Settings, **options: str) -> Producer:
    """Return a producer of another client library."""
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
    for value in (b"first " * 2, ABORTED, b"second " * 2, ABORTED):
        client.begin_transaction()
        client.produce(raw_topic, value, partition=0)
        client.flush()  # an aborted record must be in the log to be there at all
        (client.abort_transaction if value is ABORTED else client.commit_transaction)(30)
    second, end = 4, 8  # four records, a marker after each
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until(lambda: carried(settings) == (end, b"second"))
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


def carried(settings: Settings) -> tuple[int, bytes] | None:
    """Return the position of the last carry of the only chain, and the last word in its open block."""
    records = read_topic(settings, settings.streams()[0].tokens_topic, 0)
    if not records:
        return None
    last = decode_message(dict(records[-1].headers)[HEADER_NAME], records[-1].value)
    return last.cursor.next_offset, bytes(last.open_tokens).rstrip(b"\0 ").rpartition(b" ")[2]

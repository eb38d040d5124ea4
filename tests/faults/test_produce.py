"""`tokenmill produce` is killed again and again; in the end each document is in the topic, once, in order."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.app.produce.files import WRITERS
from tests.conftest import TopicFactory
from tokenmill.app.broker import Broker

PARTITIONS = 3
KILLS = 4
ROWS = 900
"""In each file: several chunks of the larger ones, at the rate below some ten seconds in all."""
RATE = "800kB"
FOREIGN = b"from somebody else"
WAIT_SECONDS = 60


def corpus(folder: Path, rng: random.Random) -> list[Path]:
    """Write a file of every format, and one of lines, with documents of very different lengths."""
    folder.mkdir()
    for name, write in WRITERS.items():
        write(folder / name, [row(f"{name}-{number}", rng) for number in range(ROWS)])
    (folder / "l.txt").write_text("".join(f"line {number} " * rng.randrange(1, 60) + "\n" for number in range(ROWS)))
    return sorted(folder.iterdir())


def row(name: str, rng: random.Random) -> dict[str, str]:
    """Return a document whose fields are in all of them."""
    return {"id": name, "text": f"text of {name}, é " * rng.randrange(1, 60), "lang": rng.choice("ab")}


class Topic:
    """A raw topic, as another client sees it."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._servers = {"bootstrap.servers": broker.bootstrap_servers}
        self._consumer = Consumer({**self._servers, "group.id": name, "enable.partition.eof": True})

    def length(self) -> int:
        """Return how many records there are, markers included."""
        ends = (self._consumer.get_watermark_offsets(TopicPartition(self.name, p), 10)[1] for p in range(PARTITIONS))
        return sum(ends)

    def disturb(self, count: int) -> None:
        """Write to it as another producer does."""
        producer = Producer(self._servers)
        for number in range(count):
            producer.produce(self.name, FOREIGN, partition=number % PARTITIONS)
            producer.poll(0)
        producer.flush()

    def documents(self) -> list[list[bytes]]:
        """Return the values in each partition, but those of others."""
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._consumer.assign([TopicPartition(self.name, number, 0) for number in range(PARTITIONS)])
        ended = 0
        while ended < PARTITIONS:
            message = self._consumer.poll(10)
            assert message is not None
            if message.error():
                ended += 1
                continue
            partition, value = message.partition(), message.value()
            assert partition is not None
            assert value is not None
            if value != FOREIGN:
                found[partition].append(value)
        self._consumer.close()
        return found


def run(broker: Broker, topic: str, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a produce."""
    command = [sys.executable, "-m", "tokenmill.app.cli", "produce", topic, *arguments]
    command += ["--bootstrap-servers", broker.bootstrap_servers, "--max-id-bytes", "1000"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_for(topic: Topic, length: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until there are so many records, or the process ended."""
    deadline = time.monotonic() + WAIT_SECONDS
    while topic.length() < length and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="as they come"),
        pytest.param(["--shuffle-buffer", "300", "--seed", "7", "--compression", "lz4"], id="shuffled"),
        pytest.param(["--key", "lang", "--where", "lang=a", "--carry", "lang"], id="keyed and chosen"),
    ],
)
def test_each_document_arrives_once_though_produce_is_killed(
    broker: Broker, topic: TopicFactory, tmp_path: Path, rng: random.Random, options: list[str]
) -> None:
    """Files of every format at once; each partition ends up as if nothing had happened, others' records between."""
    paths = [*map(str, corpus(tmp_path / "in", rng)), "--lines"]
    quiet, raw = Topic(broker, topic(PARTITIONS)), Topic(broker, topic(PARTITIONS))
    process = run(broker, quiet.name, [*paths, *options])
    said, _ = process.communicate()
    assert process.returncode == 0, said
    expected = quiet.documents()
    count = sum(map(len, expected))

    kills_in_the_middle = 0
    for _ in range(KILLS):
        before = raw.length()
        process = run(broker, raw.name, [*paths, *options, "--rate", RATE])
        target = before + rng.randrange(1, count // (KILLS + 1))
        wait_for(raw, target, process)
        kills_in_the_middle += process.poll() is None
        process.kill()
        process.communicate()
        raw.disturb(rng.randrange(0, 4000))
    process = run(broker, raw.name, [*paths, *options])
    said, _ = process.communicate()

    assert process.returncode == 0, said
    assert b"of this run were in" in said
    assert kills_in_the_middle >= 2
    assert raw.documents() == expected
    names = [json.loads(value)["id"] for values in expected for value in values]
    chosen = "--where" in options
    assert len(names) == len(set(names))
    assert len(names) == (len(WRITERS) + 1) * ROWS or (chosen and len(names) > ROWS)
